"""Tensors as lowerings see them: memory layouts, real local views, shards of DTensors."""
