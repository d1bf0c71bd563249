"""The fused Triton lowering at run time: buckets, device tables, workspaces and launches."""
