"""The codes of the dtypes that kernels know."""

import torch

DTYPE_CODES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
"""torch's numbers of the dtypes that kernels compute with or convert; dtypes.h has them too."""

QUANTIZED_DTYPE = torch.int8
"""The dtype of quantized states. An element has a value only together with its block's scale."""
STREAM_DTYPE_CODES = {**DTYPE_CODES, QUANTIZED_DTYPE: 1}
"""torch's numbers of the dtypes that a stream may have."""
