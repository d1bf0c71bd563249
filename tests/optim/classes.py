"""Every generated class of optgen.optim: a new one is tested from the day it lands."""

from __future__ import annotations

import optgen.optim
from optgen.runtime import GeneratedOptimizer

CLASSES = sorted(
    name
    for name in optgen.optim.__all__
    if isinstance(found := getattr(optgen.optim, name), type)
    and issubclass(found, GeneratedOptimizer)
)
