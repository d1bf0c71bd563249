"""Describe a compiled kernel: the streams it takes, in the order of its table."""

import ctypes

from optgen.runtime.batch.hyperparameters import HyperConverter
from optgen.runtime.protocols import HasLowerings
from optgen.runtime.reader.rule_streams import RuleStreams


class KernelSignature(RuleStreams):
    """Streams of a compiled rule, and the properties that its library exports.

    The locals are the operands and results of matrix ops.
    """

    def __init__(self, lowered: HasLowerings, library: ctypes.CDLL) -> None:
        self._library = library
        super().__init__(lowered.rule, lowered.rule.matrices)
        self.pack_hypers = HyperConverter(lowered).row
        self.has_shapes = self._exports("optgen_shapes")
        self.by_matrix = self._exports("optgen_by_matrix")
        self.matrix_calls = lowered.rule.matrix_calls

    def _exports(self, name: str) -> bool:
        try:
            return bool(self._library[name])
        except (AttributeError, UnicodeDecodeError):  # the error names the path: it may be no UTF-8
            return False
