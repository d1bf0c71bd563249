"""Let each module of the next forward pass wait for its own weights, and no other.

Hooks before the forward pass of modules note which modules are called, and in which order. Buckets
are stepped in this order. A module waits for the parameters that it has itself, and for those of
modules below it that no call reaches: `nn.MultiheadAttention` reads the weights of its `out_proj`
without calling it.

`state_dict`, `load_state_dict` and what converts or moves a model wait for all weights.

A module of FSDP2 gathers the weights of all modules below it that are none of FSDP2's. It does so
before its forward pass, on streams of its own. So it waits for all of them, before FSDP2's own
hook, and on the host.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from optgen.runtime.torch_private import fsdp_gathers_with, outside_dynamo

WaitFor = Callable[[Iterable[Tensor] | None, bool], None]
"""Waits until these parameters have their new weights; None stands for all parameters.

The device's current stream waits, or if the second argument is true, the host.
"""


class ForwardWaits:
    """The hooks of a model, and the order in which its modules were called.

    Args:
        module: The model. If `torch.compile` made it, it waits for all weights at once: a compiled
            graph calls no hooks of its parts.
        wait_for: Called before a module reads weights; weakly referenced.
    """

    def __init__(self, module: nn.Module, wait_for: WaitFor) -> None:
        self._module = weakref.ref(module)
        self._wait_for: Any = weakref.WeakMethod(wait_for)
        self._params = {id(param) for param in module.parameters()}
        # During a forward pass, FSDP2's modules have other parameters.
        self._own = {each: list(each.parameters(recurse=False)) for each in module.modules()}
        self._is_checked = False
        self._calls: dict[nn.Module, int] = {}  # by module, when it was first called
        self._called: set[nn.Module] = set()  # since `restart`
        self._params_of: dict[nn.Module, list[Tensor]] | None = None  # by the module that waits
        self._handles: list[RemovableHandle] = []
        for each in self._own:  # torch has no hook for it
            found = vars(each).setdefault("_apply", _ApplyAfterWaits(each))
            if isinstance(found, _ApplyAfterWaits):
                found.waits.append(self)
        is_compiled = hasattr(module, "_orig_mod")
        for each in [module] if is_compiled else module.modules():
            self._handles += [
                each.register_forward_pre_hook(self._before_forward, prepend=True),
                each.register_state_dict_pre_hook(self._before_all),
                each.register_load_state_dict_pre_hook(self._before_all),
            ]

    def order(self) -> dict[Tensor, int]:
        """Return when a forward pass reads each parameter: smaller numbers are earlier."""
        calls = self._calls
        return {
            param: calls[module] for module, params in self._assigned().items() for param in params
        }

    def restart(self) -> None:
        """Begin to note calls anew, for `unseen`."""
        self._called.clear()

    def unseen(self, params: Iterable[Tensor]) -> Tensor | None:
        """Return a parameter whose modules were not called since `restart`; None if all were.

        Such a parameter was used, but no hook has waited for it. Code that `torch.compile` has
        compiled before there were hooks runs without them.
        """
        waited_for = {
            param for module in self._called for param in self._assigned().get(module, ())
        }
        return next((param for param in params if param not in waited_for), None)

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        for each in self._own:
            if isinstance(found := vars(each).get("_apply"), _ApplyAfterWaits):
                found.remove(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the hooks of a copied model as hooks that wait for nothing."""
        return (_NoWaits, ())

    def _assigned(self) -> dict[nn.Module, list[Tensor]]:
        """Return the parameters that each called module waits for."""
        if self._params_of is None:
            self._params_of = {}
            root = self._module()
            if root is not None:
                self._assign(root, root if root in self._calls else None, None)
        return self._params_of

    def _assign(
        self, module: nn.Module, caller: nn.Module | None, gatherer: nn.Module | None
    ) -> None:
        caller = module if module in self._calls else caller
        gatherer = module if fsdp_gathers_with(module) else gatherer
        waiting = gatherer if gatherer in self._calls else caller
        if waiting is not None:
            assert self._params_of is not None
            self._params_of.setdefault(waiting, []).extend(self._own.get(module, ()))
        for child in module.children():
            self._assign(child, caller, gatherer)

    @outside_dynamo
    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if not self._is_checked:
            self._check_params()
        if module not in self._calls:
            self._calls[module] = len(self._calls)
            self._params_of = None
        self._called.add(module)
        gathered = fsdp_gathers_with(module)
        modules = dict.fromkeys((module, *gathered))
        params = [param for each in modules for param in self._assigned().get(each, ())]
        self._wait(params, bool(gathered))

    def _check_params(self) -> None:
        """Raise a RuntimeError if parameters of the model were replaced."""
        root = self._module()
        missing = self._params - {id(param) for param in root.parameters()} if root else set()
        if missing:
            raise RuntimeError(
                f"{len(missing)} parameters of the model were replaced after offload was called, "
                "and would not be stepped: call it after fully_shard and other calls that replace "
                "parameters"
            )
        self._is_checked = True

    def wait_for_all(self) -> None:
        """Wait until all parameters have their new weights."""
        self._is_checked = False  # something may replace parameters after it has read them
        self._wait(None)

    def _before_all(self, *_: Any) -> None:
        self.wait_for_all()

    def _wait(self, params: Iterable[Tensor] | None, on_host: bool = False) -> None:
        wait_for = self._wait_for()
        if wait_for is not None:
            wait_for(params, on_host)


class _ApplyAfterWaits:
    """A module's `_apply`, by which `cpu`, `to`, `float` and others read all weights.

    It is an attribute of the module, and waits before it calls that of the module's class.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.waits: list[ForwardWaits] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for each in self.waits:
            each.wait_for_all()
        return type(self._module)._apply(self._module, *args, **kwargs)

    def remove(self, waits: ForwardWaits) -> None:
        """Wait no more for some weights; the last call removes the attribute."""
        if waits in self.waits:
            self.waits.remove(waits)
        if not self.waits:
            del vars(self._module)["_apply"]


class _NoWaits(ForwardWaits):
    """The hooks of a copied model, whose weights no optimizer here steps."""

    def __init__(self) -> None:
        super().__init__(nn.Module(), self._never)
        self.remove()
        self._params = set()

    def _never(self, params: Iterable[Tensor] | None, on_host: bool) -> None:
        pass
