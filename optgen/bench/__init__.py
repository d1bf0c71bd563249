"""How fast a step is on this machine: ours against torch.optim's and against the memory's limit.

Ratios in one process, variants in a new order each round, medians and minima.
"""
