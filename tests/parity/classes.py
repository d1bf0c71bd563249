"""List torch's fifteen classes by what their parameters, gradients and steps must be."""

from __future__ import annotations

from typing import Any

from torch_inputs import optim_db

import optgen.optim

INFOS: dict[str, Any] = {info.optim_cls.__name__: info for info in optim_db}
PENDING = ()
"""Classes of torch.optim that are not here yet. A new class is tested at once, listed or not."""
NAMES = tuple(name for name in INFOS if hasattr(optgen.optim, name))

MATRICES = tuple(name for name in NAMES if name == "Muon")
"""Classes that take 2-D parameters only."""
SPARSE = tuple(name for name in NAMES if INFOS[name].only_supports_sparse_grads)
CLOSURE = tuple(name for name in NAMES if INFOS[name].step_requires_closure)
"""Classes that evaluate the loss themselves, and have one group of parameters."""
ONE_GROUP = tuple(name for name in NAMES if not INFOS[name].supports_param_groups)
PLAIN = tuple(name for name in NAMES if name not in (*MATRICES, *SPARSE, *CLOSURE))
"""Classes that take a dense gradient of any shape."""
COMPLEX = tuple(name for name in NAMES if INFOS[name].supports_complex)


def has(name: str, flag: str) -> bool:
    """Tell whether torch's class has the argument; it may still refuse True for it."""
    impls = INFOS[name].supported_impls
    return flag in impls or (flag == "capturable" and INFOS[name].has_capturable_arg)
