"""The codes of the dtypes that kernels know."""

import torch

CODES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
"""torch's numbers of the dtypes that kernels compute with or convert; dtypes.h has them too."""

CODES_OF_8_BITS = torch.int8
"""The dtype of quantized states: a code has a value only together with its block's scale."""
STREAM_CODES = {**CODES, CODES_OF_8_BITS: 1}
"""torch's numbers of the dtypes that a stream may have."""
