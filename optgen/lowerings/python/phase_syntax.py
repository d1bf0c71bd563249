"""Define the syntax of phases in Python: for one tensor, for lists of tensors, or for shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from optgen.ir.generated_names import plural
from optgen.lowerings.python.random_calls import draw_for_lists, draw_for_param
from optgen.lowerings.python.torch_ops import foreach_lines, forloop_lines
from optgen.passes.instructions import Instruction
from optgen.passes.name_values import Draws


@dataclass(frozen=True)
class PhaseSyntax:
    """Syntax that differs between the Python lowerings.

    In the texts from `whole_tensor` to `write_number`, `{0}` stands for the name of a tensor or of
    a small value, and `{1}` for the name of its list.
    """

    loop: str  # header of the loop over tensors or sublists
    blocks_function: str  # function that yields a sweep's blocks
    single_block_function: str  # function that yields a sweep's whole tensors, once
    set_blocked: str  # line that finds out whether there are blocks
    whole_tensor: str  # a tensor inside `loop`
    small_value: str  # a small value inside `loop`
    read: str  # reads a row or column state
    read_wider: str  # reads a row or column state in a wider dtype
    write: str  # stores a row or column state
    read_number: str  # reads a scalar state on the device
    write_number: str  # stores a scalar state on the device
    count_argument: str  # last argument of functions that must know the number of tensors
    functions: dict[str, str]  # the runtime's functions for ops of a finish
    print_instructions: Callable[[tuple[Instruction, ...]], list[str]]
    print_draws: Callable[[Draws], list[str]]  # prints the lines that draw random numbers
    in_lists: bool
    param: str = "params[0]"  # the parameter whose properties are read
    over_ranks: bool = False  # whether ranks complete each reduction together

    def listed(self, name: str) -> str:
        """Return the name of a tensor, or of the list of tensors."""
        return plural(name) if self.in_lists else name


def filled_in(text: str, name: str) -> str:
    """Return one of the texts of a syntax with a name in it."""
    return text.format(name, plural(name))


ONE_TENSOR = PhaseSyntax(
    loop="for index in range(len(params)):",
    blocks_function="blocks",
    single_block_function="one_block",
    set_blocked="blocked = needs_blocks(params[index])",
    whole_tensor="{1}[index]",
    small_value="{0}",
    read="{1}[index]",
    read_wider="wider({1}[index], params[index])",
    write="{1}[index].copy_({0})",
    read_number="number(params[index], {1}[index])",
    write_number="{1}[index].copy_({0}.view(()))",
    count_argument="",
    functions={"sum": "total"},
    print_instructions=forloop_lines,
    print_draws=draw_for_param,
    in_lists=False,
)
TENSOR_LISTS = PhaseSyntax(
    loop="for sublist in sublists({lists}):",
    blocks_function="list_blocks",
    single_block_function="one_list_block",
    set_blocked="blocked = needs_blocks(params[0])",
    whole_tensor="{1}",
    small_value="{0}.unbind()",
    read="torch.stack({1})",
    read_wider="wider(torch.stack({1}), params[0])",
    write="write({1}, {0})",
    read_number="stacked_numbers(params[0], {1})",
    write_number="write({1}, {0}.flatten())",
    count_argument=", len(params)",
    functions={"sum": "totals", "max_abs": "stacked_max_abs"},
    print_instructions=foreach_lines,
    print_draws=draw_for_lists,
    in_lists=True,
)
SHARDED = replace(
    TENSOR_LISTS,
    loop="",
    blocks_function="list_chunks",
    set_blocked="",
    print_draws=partial(draw_for_lists, extra_arguments=", collectives"),
    param="collectives.whole",
    over_ranks=True,
)
