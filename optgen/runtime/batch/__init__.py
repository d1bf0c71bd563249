"""Batches: what one step works on, gathered and checked."""
