"""Describe a compiled kernel: the streams it takes, in the order of its table."""

import ctypes

from optgen.runtime.batch.hyperparameters import HyperConverter
from optgen.runtime.fused_cpu.kernel.matrix_calls import parse_calls
from optgen.runtime.protocols import HasLowerings
from optgen.runtime.reader.streams import RuleStreams


class KernelSignature(RuleStreams):
    """Streams of a compiled rule, and the properties that its library exports.

    The locals are operands and results of matrix ops.
    """

    def __init__(self, lowered: HasLowerings, library: ctypes.CDLL) -> None:
        self._library = library
        super().__init__(lowered.rule, self._exported_text("optgen_locals").split())
        self.pack_hypers = HyperConverter(lowered).row
        self.has_shapes = self._exports("optgen_shapes")
        self.by_matrix = self._exports("optgen_by_matrix")
        self.matrix_calls = parse_calls(self._exported_text("optgen_calls"))

    def _exports(self, name: str) -> bool:
        try:
            return bool(self._library[name])
        except (AttributeError, UnicodeDecodeError):  # the error names the path: it may be no UTF-8
            return False

    def _exported_text(self, name: str) -> str:
        """Return a string that the library exports; "" if it exports none of that name."""
        if not self._exports(name):
            return ""
        return (ctypes.c_char_p.in_dll(self._library, name).value or b"").decode()
