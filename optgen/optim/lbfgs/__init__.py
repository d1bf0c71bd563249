"""The mirror of torch.optim.lbfgs, written by hand, because it is not an update rule.

`optimizer` defines the class, `descent` the iterations of a step, `inverse_hessian` the history of
curvature pairs and the direction, and `line_search` the search along a direction. `objective` calls
closures. `flat_parameters` joins parameters into one vector. `cpu_kernels` builds the C++.
"""

from optgen.optim.lbfgs.optimizer import LBFGS

__all__ = ["LBFGS"]

LBFGS.__module__ = __name__
