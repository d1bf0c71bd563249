"""Templates of generated files: they hold structure only, and no arithmetic."""
