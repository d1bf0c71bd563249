"""The mirror of torch.optim.lbfgs, written by hand, because it is not an update rule.

Here is the class LBFGS, with torch's arguments, groups, state and checkpoints. `descent` has the
iterations of a step, the search along a direction and the calls of the closure; `history` the
curvature pairs and the direction that follows from them, in C++ on a CPU.
"""

import math
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from optgen.optim.lbfgs.descent import Descent, Objective
from optgen.optim.lbfgs.history import FlatParameters, History
from optgen.runtime.batch.check_batch import check_storages
from optgen.runtime.light_optimizer import LightOptimizer, with_step_hooks
from optgen.runtime.rule import drop_unset
from optgen.runtime.state import checkpoint
from optgen.runtime.torch_private import check_graph_capture

__all__ = ["LBFGS"]

_OPTION_DEFAULTS = {
    "maximize": False,
    "foreach": None,
    "fused": None,
    "capturable": False,
    "differentiable": False,
}
_TORCH_ARGUMENTS = signature(torch.optim.LBFGS).parameters
_ABSENT_OPTIONS = {
    key: default for key, default in _OPTION_DEFAULTS.items() if key not in _TORCH_ARGUMENTS
}
"""Options that groups lack in this version of torch; a missing key stands for this value.

Groups hold `maximize` since torch 2.14.
"""

_ONE_GROUP_MESSAGE = "LBFGS doesn't support per-parameter options (parameter groups)"


class LBFGS(LightOptimizer):
    r"""Limited-memory BFGS (Liu and Nocedal, 1989), optionally with a strong Wolfe line search.

    A step takes up to `max_iter` iterations, and evaluates the model at least once in each:

    .. math::
        \begin{aligned}
            &s_k \leftarrow \theta_k - \theta_{k-1}, \quad y_k \leftarrow g_k - g_{k-1} \\
            &d_k \leftarrow -H_k g_k \text{, with } H_k \text{ of the last pairs } (s, y) \\
            &\theta_{k+1} \leftarrow \theta_k + t_k d_k
        \end{aligned}

    with :math:`t_k = \gamma`, the learning rate, or the result of a line search that begins there.

    All parameters are one vector, in one group and on one device. After `history_size` iterations,
    the history takes `2 * history_size` times their memory.

    Args:
        params: Parameters to optimize or pairs (name, parameter), or one dict that defines a group.
        lr (float or Tensor): Learning rate, at least 0. Default: 1.
        max_iter (int): The most iterations in a step. Default: 20.
        max_eval (int or None): No iteration begins, and no line search continues, after this many
            calls of the closure in a step. None is 1.25 * max_iter. Default: None.
        tolerance_grad (float): Stop if no element of the gradient is larger. Default: 1e-7.
        tolerance_change (float): Stop if the loss or all parameters change less. Default: 1e-9.
        history_size (int): The number of curvature pairs to keep, at least 1. Default: 100.
        line_search_fn (str or None): None or "strong_wolfe". Default: None.
        maximize (bool): Maximize the objective. Default: False.
        foreach (bool or None): No effect: the parameters are one vector. Default: None.
        fused (bool or None): No effect. Default: None.
        capturable (bool): Not supported: steps depend on decisions of the host. Default: False.
        differentiable (bool): Not supported. Default: False.

    Raises:
        ValueError: An argument is outside its range, or there is more than one group.
        RuntimeError: `fused` and `foreach` are both True; `capturable` or `differentiable` is True;
            or a step has parameters on several devices, or sharded ones.

    State, all of it under the first parameter:
        func_evals, n_iter (int): The numbers of evaluations and iterations in all steps.
        d, t: The last direction and step length.
        old_dirs, old_stps (list of Tensor): :math:`y` and :math:`s`, oldest first.
        ro, al (list of Tensor), H_diag: Coefficients of the last direction.
        prev_flat_grad, prev_loss: The gradient and the loss where the last direction began.

    Paper: https://link.springer.com/article/10.1007/BF01589116
    """

    needs_closure = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        _check_bounds(lr, history_size)
        if max_eval is None:
            max_eval = max_iter * 5 // 4
        defaults = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        self._history: History | None = None
        self._capturable_groups = frozenset()
        super().__init__(params, drop_unset(defaults, _ABSENT_OPTIONS))
        _check_support(self.param_groups[0])

    @with_step_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step, and return the first loss.

        Args:
            closure: Reevaluates the model and returns the loss.
        """
        self._undo_dynamo_writes()
        check_graph_capture(self)
        if closure is None:
            raise TypeError(
                "LBFGS.step() missing 1 required positional argument: 'closure', a function that "
                "clears the gradients, computes the loss, calls loss.backward() and returns it"
            )
        if len(self.param_groups) != 1:
            raise AssertionError(
                f"Expected exactly one param_group, but got {len(self.param_groups)}"
            )
        if not self.param_groups[0]["params"]:
            with torch.enable_grad():
                return closure()
        with torch.no_grad():
            return self._step(self.param_groups[0], closure)

    def _step(self, group: dict[str, Any], closure: Callable[[], Any]) -> Any:
        state = self.state[group["params"][0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        _check_state(state)
        flat = FlatParameters(group["params"])
        objective = Objective(flat, closure, group.get("maximize", False))
        start = objective()
        state["func_evals"] += 1
        if group["tolerance_grad"] < start.max_abs_gradient < math.inf:
            history = self._restore_history(state, group["history_size"], start.gradient)
            Descent(group, state, objective, history, start).run()
        return objective.first_loss

    def _restore_history(self, state: dict[str, Any], capacity: int, like: Tensor) -> History:
        """Return the history in a state; reuse the current history if the state still holds it."""
        if state["n_iter"] == 0:
            self._history = History(capacity, like)
            return self._history
        pairs = [*state.get("old_dirs", ()), *state.get("old_stps", ())]
        for vector in (state["d"], state["prev_flat_grad"], *pairs):
            if not isinstance(vector, Tensor) or vector.shape != like.shape:
                count = vector.numel() if isinstance(vector, Tensor) else "no"
                raise RuntimeError(
                    f"the state of LBFGS has {count} numbers, but the parameters "
                    f"have {like.numel()}: clear optimizer.state, or restore the parameters of "
                    "that state"
                )
        if self._history is None or not self._history.is_unchanged_in(state, capacity, like):
            self._history = History.from_state(capacity, like, state)
        return self._history

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the group of parameters. There may be only one.

        Raises:
            ValueError: There already is a group.
        """
        super().add_param_group(param_group)
        if len(self.param_groups) > 1:
            self.param_groups.pop()
            raise ValueError(_ONE_GROUP_MESSAGE)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state as torch's LBFGS would."""
        self._copy_history()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        self._copy_history()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        old_groups = self.__dict__.get("param_groups", [])
        super().__setstate__(state)
        # torch's method adds keys that newer versions of torch have.
        self.defaults = drop_unset(self.defaults, _ABSENT_OPTIONS)
        self._history = None
        checkpoint.backfill(self, old_groups, {}, _ABSENT_OPTIONS)
        self._note_capturable_groups()

    def _copy_history(self) -> None:
        """Copy every vector of the history into its own memory.

        Otherwise `torch.save` would write a whole matrix, with its unused rows.

        The next step rebuilds the history from these copies, as a step after a load does. So this
        run and one resumed from the checkpoint take bitwise equal steps.
        """
        self._history = None
        for state in self.state.values():
            for key in ("old_dirs", "old_stps"):
                if key in state:
                    state[key] = [row.clone() for row in state[key]]


def _check_bounds(lr: float | Tensor, history_size: int) -> None:
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not 0.0 <= lr:
        raise ValueError(f"Invalid learning rate: {lr}")
    if not history_size >= 1:
        raise ValueError(f"Invalid history_size value: {history_size}")


def _check_state(state: dict[str, Any]) -> None:
    """Raise an error for a tensor of the state that is larger than its storage."""
    for key, value in state.items():
        tensors = value if isinstance(value, list) else [value]
        check_storages({key: [each for each in tensors if isinstance(each, Tensor)]})


def _check_support(group: dict[str, Any]) -> None:
    if group.get("fused") and group.get("foreach"):
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
    for name in ("capturable", "differentiable"):
        if group.get(name):
            raise RuntimeError(
                f"LBFGS does not support `{name}`: it decides on the host where to evaluate next, "
                "from the results of its closure"
            )
