"""How the Python lowerings spell phases: one tensor, a share of a list, or parts of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from optgen.lowerings.python.torch_ops import foreach_lines, forloop_lines
from optgen.passes.instructions import Instruction


@dataclass(frozen=True)
class PhaseSyntax:
    """How one lowering spells what the other spells differently.

    `whole` and `small` are a whole tensor and a small value where a trip goes over them, `read` and
    `write` a row or column state, all with `{0}` for the name and `{1}` for its list. `param` is
    whose properties count. `over_ranks`: what is summed here is completed by other processes.
    """

    loop: str
    blocks: str
    uncut: str
    blocked: str
    whole: str
    small: str
    read: str
    write: str
    count: str
    functions: dict[str, str]
    lines: Callable[[tuple[Instruction, ...]], list[str]]
    in_lists: bool
    param: str = "params[0]"
    over_ranks: bool = False


ONE_TENSOR = PhaseSyntax(
    loop="for index in range(len(params)):",
    blocks="blocks",
    uncut="as_one",
    blocked="blocked = is_cut(params[index])",
    whole="{1}[index]",
    small="{0}",
    read="{1}[index]",
    write="{1}[index].copy_({0})",
    count="",
    functions={"sum": "total"},
    lines=forloop_lines,
    in_lists=False,
)
TENSOR_LISTS = PhaseSyntax(
    loop="for share in shares({lists}):",
    blocks="list_blocks",
    uncut="lists_as_one",
    blocked="blocked = is_cut(params[0])",
    whole="{1}",
    small="{0}.unbind()",
    read="torch.stack({1})",
    write="write({1}, {0})",
    count=", len(params)",
    functions={"sum": "totals", "max_abs": "max_abses"},
    lines=foreach_lines,
    in_lists=True,
)
SHARDED = replace(
    TENSOR_LISTS, loop="", blocks="portions", blocked="", param="split.whole", over_ranks=True
)
