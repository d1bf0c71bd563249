"""What torchrec has under this name: row-wise Adagrad."""

from optgen.generated.row_wise_adagrad import RowWiseAdagrad

__all__ = ["RowWiseAdagrad"]
