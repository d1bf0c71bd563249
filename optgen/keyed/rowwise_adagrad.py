"""Provide torchrec's module of this name: row-wise Adagrad."""

from optgen.generated.row_wise_adagrad import RowWiseAdagrad

__all__ = ["RowWiseAdagrad"]
