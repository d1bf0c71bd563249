"""The mirror of torch.optim._functional: the functional forms under torch's older name."""

from optgen.optim.functional import *  # noqa: F403
from optgen.optim.functional import __all__ as __all__
