"""Compiled kernels: their signatures, their tables, and the calls that run them."""
