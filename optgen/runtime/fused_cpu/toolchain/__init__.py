"""Builds C++ sources to shared libraries, once for all processes."""
