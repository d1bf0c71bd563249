"""The fused C++ lowering at run time: kernels, their tables, their build, and cached steps."""
