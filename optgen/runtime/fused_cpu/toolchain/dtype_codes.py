"""The codes of the dtypes that kernels know."""

import torch

CODES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
"""torch's numbers of these dtypes, which the C++ headers have too."""
