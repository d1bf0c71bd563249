"""One backend, one file: what an algorithm's generated folder holds."""

from optgen.lowerings.base import Lowering
from optgen.lowerings.foreach import FOREACH
from optgen.lowerings.forloop import FORLOOP
from optgen.lowerings.optimizer import OPTIMIZER

LOWERINGS: tuple[Lowering, ...] = (OPTIMIZER, FORLOOP, FOREACH)

__all__ = ["LOWERINGS", "Lowering"]
