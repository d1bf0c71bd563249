"""The mirror of torch.optim.swa_utils: torch's own averaging, which works on any model."""

from torch.optim.swa_utils import *
from torch.optim.swa_utils import __all__ as __all__
