"""Tensors as lowerings see them: memory layouts, real local views, DTensor shards."""
