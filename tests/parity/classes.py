"""List torch's fifteen classes by the parameters, gradients and closures that they take."""

from __future__ import annotations

from typing import Any

from torch_inputs import optim_db

import optgen.optim

INFOS: dict[str, Any] = {info.optim_cls.__name__: info for info in optim_db}
PENDING = ()
"""Classes of torch.optim that optgen.optim lacks."""
NAMES = tuple(name for name in INFOS if hasattr(optgen.optim, name))

MATRIX_CLASSES = tuple(name for name in NAMES if name == "Muon")
"""Classes that take 2-D parameters only."""
SPARSE_CLASSES = tuple(name for name in NAMES if INFOS[name].only_supports_sparse_grads)
"""Classes that take sparse gradients only."""
CLOSURE_CLASSES = tuple(name for name in NAMES if INFOS[name].step_requires_closure)
"""Classes whose step evaluates a loss itself."""
ONE_GROUP_CLASSES = tuple(name for name in NAMES if not INFOS[name].supports_param_groups)
DENSE_CLASSES = tuple(
    name for name in NAMES if name not in (*MATRIX_CLASSES, *SPARSE_CLASSES, *CLOSURE_CLASSES)
)
"""Classes that take a dense gradient of any shape."""
COMPLEX_CLASSES = tuple(name for name in NAMES if INFOS[name].supports_complex)


def torch_has_flag(name: str, flag: str) -> bool:
    """Tell whether torch's class has the argument; the class may still refuse True."""
    impls = INFOS[name].supported_impls
    return flag in impls or (flag == "capturable" and INFOS[name].has_capturable_arg)
