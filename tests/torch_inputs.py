"""List torch's optimizers with the inputs of its own tests, as torch does.

torch's list of optimizers imports two slow modules, only for classes that mark tests. The imports
take two seconds. So this module registers empty modules in their place while it imports the list;
their classes do nothing.
"""

import sys
from types import ModuleType
from typing import Any


class _Mark:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass


_MARK_CLASSES = {"common_methods_invocations": ["DecorateInfo"]}
_MARK_CLASSES["common_device_type"] = ["tol", "toleranceOverride"]
_empty_modules = []
for _module, _names in _MARK_CLASSES.items():
    _path = f"torch.testing._internal.{_module}"
    if _path not in sys.modules:
        sys.modules[_path] = ModuleType(_path)
        vars(sys.modules[_path]).update(dict.fromkeys(_names, _Mark))
        _empty_modules.append(_path)
try:
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum as OptimizerErrorEnum
    from torch.testing._internal.common_optimizers import optim_db as optim_db
finally:
    for _path in _empty_modules:
        del sys.modules[_path]
