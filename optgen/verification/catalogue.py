"""The optimizers of the catalogue by name."""

from __future__ import annotations

import torch.optim

from optgen.generated.row_wise_adagrad import RowWiseAdagrad
from optgen.optim._published import PUBLISHED, published_class
from optgen.verification.torch_classes import CLASSES

KEYED = {"row_wise_adagrad": RowWiseAdagrad}
"""Classes that `optgen.keyed` has, and `optgen.optim` has not."""
NAMES = tuple(sorted({*CLASSES, *KEYED, *PUBLISHED}))
"""The names of all optimizers of the catalogue."""


def class_of(name: str) -> type[torch.optim.Optimizer]:
    """Return the class with a name of the catalogue."""
    if name in PUBLISHED:
        return published_class(name)
    return KEYED.get(name) or CLASSES[name]
