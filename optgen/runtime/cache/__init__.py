"""The cache folder: generated texts and compiled libraries, and whom it trusts."""
