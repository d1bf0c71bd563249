"""The skeletons of generated files: structure only, no arithmetic."""
