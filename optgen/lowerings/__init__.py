"""Lowerings: each of `LOWERINGS` writes one file of `generated/<name>/`."""

from optgen.lowerings.foreach import FOREACH, OUTLINED
from optgen.lowerings.forloop import FORLOOP
from optgen.lowerings.fused_cpu import FUSED_CPU
from optgen.lowerings.fused_triton import FUSED_TRITON
from optgen.lowerings.lowering import Lowering
from optgen.lowerings.optimizer import FUNCTION, OPTIMIZER

LOWERINGS: tuple[Lowering, ...] = (
    *(OPTIMIZER, FUNCTION, FORLOOP, FOREACH, OUTLINED, FUSED_CPU, FUSED_TRITON),
)

__all__ = ["LOWERINGS", "Lowering"]
