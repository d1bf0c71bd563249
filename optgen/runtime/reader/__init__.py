"""The C++ reader of a cached step's tensors."""
