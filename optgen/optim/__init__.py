"""The mirror of torch.optim, name for name: `import optgen.optim as optim` replaces torch's.

Published optimizers that torch lacks are here too: `from optgen.optim import Lion`.
Schedulers are written by hand. `Optimizer` is torch's own class, from which ours derive.
"""

import difflib
from typing import TYPE_CHECKING

import torch.optim
from torch.optim import Optimizer

from optgen.optim import _functional as _functional  # an attribute of the package, as in torch
from optgen.optim import _published, functional, lr_scheduler, swa_utils
from optgen.optim._adafactor import Adafactor
from optgen.optim._chained import ChainedOptimizer
from optgen.optim._create_optimizer import (
    create_optimizer,
    list_optimizers,
    optimizer_class,
    param_groups,
)
from optgen.optim._muon import Muon
from optgen.optim._sam import SAM
from optgen.optim.adadelta import Adadelta
from optgen.optim.adagrad import Adagrad
from optgen.optim.adam import Adam
from optgen.optim.adamax import Adamax
from optgen.optim.adamw import AdamW
from optgen.optim.asgd import ASGD
from optgen.optim.lbfgs import LBFGS
from optgen.optim.nadam import NAdam
from optgen.optim.radam import RAdam
from optgen.optim.rmsprop import RMSprop
from optgen.optim.rprop import Rprop
from optgen.optim.sgd import SGD
from optgen.optim.sparse_adam import SparseAdam
from optgen.runtime.state.swap import swap_in_optimizer_params_and_state

if TYPE_CHECKING:
    from optgen.optim._published import *  # noqa: F403

__all__ = [
    "ASGD",
    "LBFGS",
    "SAM",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ChainedOptimizer",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SparseAdam",
    "create_optimizer",
    "functional",
    "list_optimizers",
    "lr_scheduler",
    "optimizer_class",
    "param_groups",
    "swa_utils",
    "swap_in_optimizer_params_and_state",
]

swap_in_optimizer_params_and_state.__module__ = __name__


def __getattr__(name: str) -> type[Optimizer]:
    """Import a published optimizer at the first access to its name."""
    for spec, published_name in _published.PUBLISHED.items():
        if name == published_name:
            return _published.published_class(spec)
    message = f"module {__name__!r} has no attribute {name!r}"
    if name in torch.optim.__all__:
        message = f"optgen.optim has no {name} yet; torch.optim.{name} works beside it"
    else:
        names = {each.lower(): each for each in (*__all__, *_published.PUBLISHED.values())}
        for close in difflib.get_close_matches(name.lower(), names, 1):
            message += f": did you mean `{names[close]}`?"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted({*globals(), *_published.PUBLISHED.values()})
