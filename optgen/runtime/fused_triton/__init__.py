"""Backend of the fused Triton lowering: buckets, device tables, workspaces and launches."""
