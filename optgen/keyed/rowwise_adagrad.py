"""The name of `torchrec.optim.rowwise_adagrad`: row-wise Adagrad."""

from optgen.generated.row_wise_adagrad import RowWiseAdagrad

__all__ = ["RowWiseAdagrad"]
