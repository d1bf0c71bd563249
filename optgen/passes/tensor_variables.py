"""Track the tensor variables of a sweep: their axes and dtypes, and which may be overwritten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from optgen.ir.binding_times import Axes, Stage
from optgen.ir.nodes import Expr, refs
from optgen.ir.plan import Plan, Sweep
from optgen.passes.instructions import Operand


@dataclass
class TensorVariables:
    """Variables at one point of a sweep.

    `owned` holds the names of tensors that the generated code allocates, so it may overwrite them.
    `other_dtypes` holds the names of tensors whose dtype may differ from the parameter's. `aliases`
    maps a name to the names that may share its tensor.
    """

    plan: Plan
    sweep: Sweep
    stored: frozenset[str]  # the streams that the sweep changes
    axes: dict[str, int]  # as bits
    owned: set[str] = field(default_factory=set)
    other_dtypes: set[str] = field(default_factory=set)
    aliases: dict[str, frozenset[str]] = field(default_factory=dict)

    def copy(self) -> TensorVariables:
        """Return a copy for another arm of a branch. The arms share `axes`."""
        owned, other_dtypes = set(self.owned), set(self.other_dtypes)
        return replace(self, owned=owned, other_dtypes=other_dtypes, aliases=dict(self.aliases))

    def join(self, other: TensorVariables) -> None:
        """Join with the variables after the other arm of a branch.

        A name is owned if both arms own it. It is an alias, or may have another dtype, if that
        holds after either arm.
        """
        self.owned &= other.owned
        self.other_dtypes |= other.other_dtypes
        for name, sources in other.aliases.items():
            self.aliases[name] = sources | self.aliases.get(name, frozenset())

    def names_sharing_tensor(self, name: str) -> frozenset[str]:
        """Return every name that may share a tensor with this one, itself included."""
        return self.aliases.get(name, frozenset()) | {name}

    def num_reads(self, value: Expr, name: str) -> int:
        """Return how often a value reads a tensor, by this name or by another."""
        return sum(name in self.names_sharing_tensor(ref.name) for ref in refs(value))

    def may_overwrite(self, name: str) -> bool:
        """Tell whether an operation may change a tensor in place."""
        return name in self.stored or name in self.owned

    def can_hold(self, target: str, args: Iterable[Operand]) -> bool:
        """Tell whether a target has every axis of an operation's broadcast result."""
        target_axes = self.broadcast_axes((target,))
        return target_axes | self.broadcast_axes(args) == target_axes

    def broadcast_axes(self, operands: Iterable[Operand]) -> int:
        """Return the axes of the operands' broadcast result, as bits."""
        axes = 0
        for operand in operands:
            if isinstance(operand, str):
                axes |= self.axes.get(operand, Axes.TENSOR)
        return axes

    def may_have_another_dtype(self, expr: Expr) -> bool:
        """Tell whether operands of a value may have another dtype than the parameter.

        torch's lerp needs operands of one dtype. Results of reductions, and values computed from
        them, may be wider than the parameter. The result of a matrix op may be narrower.
        """
        tensors = (r for r in refs(expr) if self.plan.kinds[r].stage is Stage.DEVICE)
        return any(
            ref.name in self.other_dtypes or self.plan.kinds[ref].axes is not Axes.TENSOR
            for ref in tensors
        )

    def stream_of_param_dtype(self) -> str:
        """Return the name of a stream that surely has the parameter's dtype, if there is one.

        A stream that only some parameters have is the last choice: its tensor may be None.
        """
        streams = self.sweep.streams
        always_present = [s for s in streams if s.state is None or s.state.when is None]
        names = [stream.name for stream in always_present or streams]
        return next((name for name in names if name not in self.other_dtypes), names[0])


def variables_before(plan: Plan, sweep: Sweep) -> TensorVariables:
    """Return the variables before the first statement of a sweep."""
    stored = frozenset(s.name for s in sweep.streams if s.stored)
    axes = {r.name: int(kind.axes) for r, kind in plan.kinds.items()}
    other_dtypes = {call.target.name for call in plan.matrix_calls}
    other_dtypes |= {s.name for s in sweep.streams if s.state and s.state.dtype}
    return TensorVariables(plan, sweep, stored, axes, other_dtypes=other_dtypes)
