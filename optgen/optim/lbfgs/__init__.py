"""The mirror of torch.optim.lbfgs: the one optimizer that is not an update rule, written by hand.

`optimizer` is the class, `descent` the iterations of a step, `history` the inverse Hessian, and
`line_search` the search along a direction; `objective` knows closures, `flat` knows parameters.
"""

from optgen.optim.lbfgs.optimizer import LBFGS

__all__ = ["LBFGS"]

LBFGS.__module__ = __name__
