"""The cache folder: generated texts and compiled libraries, and checks of its ownership."""
