"""Backend of the for-loop and foreach lowerings, and the functions their generated code imports."""
