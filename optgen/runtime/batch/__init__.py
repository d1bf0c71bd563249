"""Batches: the tensors of one step, gathered and checked."""
