"""Build shared libraries from C++ sources, once for all processes."""
