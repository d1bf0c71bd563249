"""Join the state of an optimizer and the entries of its wrappers into one mapping."""

from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import Tensor

State = MutableMapping[Tensor, Any]


class ExtendedState(State):
    """Mapping over an optimizer's state and the entries of its wrappers.

    New entries go to the optimizer's state. If that state is a defaultdict, reading a missing entry
    creates it.
    """

    def __init__(self, state: State, wrapper_state: State) -> None:
        self._state = state
        self._wrapper_state = wrapper_state

    def _holder(self, key: Any) -> State:
        return self._wrapper_state if key in self._wrapper_state else self._state

    def __getitem__(self, key: Tensor) -> Any:
        return self._holder(key)[key]

    def __setitem__(self, key: Tensor, value: Any) -> None:
        self._holder(key)[key] = value

    def __delitem__(self, key: Tensor) -> None:
        del self._holder(key)[key]

    def __iter__(self) -> Iterator[Tensor]:
        yield from self._state
        yield from self._wrapper_state

    def __len__(self) -> int:
        return len(self._state) + len(self._wrapper_state)

    def __repr__(self) -> str:
        return repr(dict(self))

    # The inherited methods use [], which would create the entries that a defaultdict lacks.

    def __contains__(self, key: object) -> bool:
        return key in self._holder(key)

    def get(self, key: Tensor, default: Any = None) -> Any:
        """Return the entry of a parameter, or the default."""
        return self._holder(key).get(key, default)

    def pop(self, key: Tensor, *default: Any) -> Any:
        """Remove and return the entry of a parameter; without one, return the default."""
        return self._holder(key).pop(key, *default)

    def setdefault(self, key: Tensor, default: Any = None) -> Any:
        """Return the entry of a parameter, after setting it to the default if there is none."""
        return self._holder(key).setdefault(key, default)
