"""The mirror of torch.optim.lr_scheduler: torch's own schedulers, which drive ours as well."""

from torch.optim.lr_scheduler import *
from torch.optim.lr_scheduler import __all__ as __all__
from torch.optim.lr_scheduler import _LRScheduler as _LRScheduler
