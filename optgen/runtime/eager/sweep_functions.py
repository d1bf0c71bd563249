"""Call the functions that compute the elementwise parts of a rule on whole matrices."""

import importlib
from collections.abc import Callable
from typing import Any

from optgen.runtime.eager.tensor_lists import TensorList


def sweep_function(package: str, name: str) -> Callable[..., None]:
    """Return a generated function over lists, wrapped so that it takes `TensorList`s."""
    update = importlib.import_module(f"{package}.{name}")._update

    def sweep(*lists: TensorList, **numbers: Any) -> None:
        update(*(each.tensors for each in lists), **numbers)

    return sweep
