"""Backend of the fused C++ lowering: kernels, their tables, their build, and cached steps."""
