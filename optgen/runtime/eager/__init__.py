"""The for-loop and foreach lowerings at run time, and what their generated code imports."""
