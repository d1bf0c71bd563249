"""Measure the time of a step on this machine, against torch.optim and against the memory limit.

All variants run in one process, in a new order each round. Results are medians and minima.
"""
