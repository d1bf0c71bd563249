"""List torch's optimizers with the inputs of its own tests, as torch does.

The list imports torch's lists of operators and devices, for classes that only mark tests. These
imports take two seconds, so a class that does nothing takes the place of each.
"""

import sys
from types import ModuleType
from typing import Any


class _Mark:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass


_MARKS = {"common_methods_invocations": ["DecorateInfo"]}
_MARKS["common_device_type"] = ["tol", "toleranceOverride"]
_empty = []
for _module, _names in _MARKS.items():
    _path = f"torch.testing._internal.{_module}"
    if _path not in sys.modules:
        sys.modules[_path] = ModuleType(_path)
        vars(sys.modules[_path]).update(dict.fromkeys(_names, _Mark))
        _empty.append(_path)
try:
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum as OptimizerErrorEnum
    from torch.testing._internal.common_optimizers import optim_db as optim_db
finally:
    for _path in _empty:
        del sys.modules[_path]
