"""Compare optimizers of the catalogue with independent implementations of their rules.

`references` has the rules, written anew in plain torch, and `packages` the optimizers of other
libraries. `compare` takes the same steps on both sides. `evidence` records the largest differences.
"""
