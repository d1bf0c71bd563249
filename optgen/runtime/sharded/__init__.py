"""Tensors that several processes hold together (DTensor), and steps of which each takes a part."""
