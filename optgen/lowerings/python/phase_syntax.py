"""Define the syntax of phases in Python: for one tensor, for lists of tensors, or for shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from optgen.lowerings.python.random_calls import draw_for_lists, draw_for_param
from optgen.lowerings.python.torch_ops import foreach_lines, forloop_lines
from optgen.passes.instructions import Instruction
from optgen.passes.name_random import Draws


@dataclass(frozen=True)
class PhaseSyntax:
    """Syntax that differs between the Python lowerings.

    `loop` is the header of the loop over tensors or sublists. `blocks` loops over a sweep's blocks,
    and `single_block` over its whole tensors; `set_blocked` is the line that checks if there are
    blocks. `whole` and `small` are the texts of a tensor and of a small value inside the loop over
    tensors or sublists. `read` and `write` read and write a row or column state; `read_wider` reads
    one in a rule that computes in a wider dtype. `read_number` and `write_number` are for a scalar
    state on the device. In all texts from `whole` to `write_number`, `{0}` is the name and `{1}`
    its list. `count` is added to the arguments of functions that must know the number of tensors.
    `functions` maps ops to functions of the runtime. `lines` prints instructions, and `draw` prints
    the lines that draw random numbers. `param` is the parameter whose properties are read. With
    `over_ranks`, all ranks must complete every reduction together.
    """

    loop: str
    blocks: str
    single_block: str
    set_blocked: str
    whole: str
    small: str
    read: str
    read_wider: str
    write: str
    read_number: str
    write_number: str
    count: str
    functions: dict[str, str]
    lines: Callable[[tuple[Instruction, ...]], list[str]]
    draw: Callable[[Draws], list[str]]
    in_lists: bool
    param: str = "params[0]"
    over_ranks: bool = False


ONE_TENSOR = PhaseSyntax(
    loop="for index in range(len(params)):",
    blocks="blocks",
    single_block="one_block",
    set_blocked="blocked = needs_blocks(params[index])",
    whole="{1}[index]",
    small="{0}",
    read="{1}[index]",
    read_wider="wider({1}[index], params[index])",
    write="{1}[index].copy_({0})",
    read_number="number(params[index], {1}[index])",
    write_number="{1}[index].copy_({0}.view(()))",
    count="",
    functions={"sum": "total"},
    lines=forloop_lines,
    draw=draw_for_param,
    in_lists=False,
)
TENSOR_LISTS = PhaseSyntax(
    loop="for sublist in sublists({lists}):",
    blocks="list_blocks",
    single_block="one_list_block",
    set_blocked="blocked = needs_blocks(params[0])",
    whole="{1}",
    small="{0}.unbind()",
    read="torch.stack({1})",
    read_wider="wider(torch.stack({1}), params[0])",
    write="write({1}, {0})",
    read_number="stacked_numbers(params[0], {1})",
    write_number="write({1}, {0}.flatten())",
    count=", len(params)",
    functions={"sum": "totals", "max_abs": "stacked_max_abs"},
    lines=foreach_lines,
    draw=draw_for_lists,
    in_lists=True,
)
SHARDED = replace(
    TENSOR_LISTS,
    loop="",
    blocks="list_chunks",
    set_blocked="",
    draw=partial(draw_for_lists, extra_arguments=", collectives"),
    param="collectives.whole",
    over_ranks=True,
)
