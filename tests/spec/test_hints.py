"""Test hints for unknown names: misspelled, unsupported, or defined in another notebook cell."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
from spec_texts import spec

from optgen.ir.ops import CALLABLE_OPS
from optgen.spec import Spec, hyper, optimizer
from optgen.spec.errors import SpecError, did_you_mean
from optgen.spec.read_spec import read_spec
from optgen.spec.substitutes import NO_SUBSTITUTE, UNSUPPORTED


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("sqroot", "sqrt"),
        ("sqtr", "sqrt"),
        ("Sqrt", "sqrt"),
        ("maxmum", "maximum"),
        ("orthogonalise", "orthogonalize"),
        ("rowsum", "row_sum"),
        ("row_men", "row_mean"),
    ],
)
def test_the_error_for_a_misspelled_name_proposes_the_word(name: str, word: str) -> None:
    assert did_you_mean(name, CALLABLE_OPS) == f"did you mean `{word}`?"


@pytest.mark.parametrize(
    "name", ["global_sum", "row_max", "normalize", "ab", "x", "total_norm", "sum_rows", "log_det"]
)
def test_the_error_for_a_name_unlike_every_word_proposes_none(name: str) -> None:
    assert did_you_mean(name, CALLABLE_OPS, "otherwise") == "otherwise"


def error_of(expression: str, file: str = "made.py") -> SpecError:
    text = spec(f"p = p - lr * {expression}")
    with pytest.raises(SpecError) as caught:
        read_spec(Spec("made", text, file, 1))
    return caught.value


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_function_has_a_hint_of_its_own(name: str) -> None:
    assert name not in CALLABLE_OPS
    error = error_of(f"{name}(g)")
    assert error.message == f"the language has no `{name}`"
    assert error.hint == (UNSUPPORTED[name] or NO_SUBSTITUTE)


IDIOMS = {
    "g.sum(0)": "write col_sum(g)",
    "g.mean(-1)": "write row_mean(g)",
    "g.mean(dim=-1, keepdim=True)": "write row_mean(g)",
    "norm(g, dim=1)": "write row_norm(g)",
    "torch.norm(g, dim=0)": "write col_norm(g)",
    "g.norm(dim=(-2, -1), keepdim=True)": 'write norm(g, over="matrix")',
    "torch.linalg.matrix_norm(g)": 'norm(x, over="matrix")',
    "sum(g, [-1, -2])": 'write sum(g, over="matrix")',
    "sum(g, 1)": "write row_sum(g)",
    "g.max(dim=1)": "write row_max_abs(g)",
    "p.size(1)": "write cols(p)",
    "p.shape[0]": "write rows(p)",
    "p.shape[-1]": "write cols(p)",
    "p.shape": "sizes are those of the parameter: rows(p)",
    "p.numel()": "write numel(p)",
    "p.dim()": "write ndim(p)",
    "len(p)": "rows(p), cols(p)",
    "torch.mul(g, 1 - lr)": "write g * (1 - lr)",
    "torch.square(1 - g)": "write (1 - g)**2",
    "torch.rsqrt(1 + g)": "write 1 / sqrt(1 + g)",
    "torch.isnan(g)": "x != x",
    "randn_like(g)": "in a rule on matrices, gaussian(x, seed, stream)",
    "rand_like(g)": "random(seed, stream)",
    "nan_to_num(g)": "where(x == x, x, 0)",
    "gradient": "the gradient is called `g` in this rule",
    "param": "the parameter is called `p` in this rule",
    "torch.mean(g)": "call it by its plain name: mean(g)",
    "np.sqrt(g)": "call it by its plain name: sqrt(g)",
    "math.sqrt(lr)": "call it by its plain name: sqrt(lr)",
    "g.pow(2)": "write g ** 2",
    "g.square()": "write g**2",
    "g ^ 2": "a power is written with two stars: g**2",
    "0.5 * g^2": "a power is written with two stars: g**2",
    "-g^2": "a power is written with two stars: g**2",
    "g.T": "write transpose(g)",
    "g.t()": "write transpose(g)",
    "p.data": "leave .data out, and write p",
    "g.detach()": "leave .detach out, and write g",
    "(g * g).detach()": "leave .detach out, and write g * g",
    "norm(g).item()": "leave .item() out: norm(g) is a number already",
    "p.grad": "write g, the gradient",
    "self.lr": "write lr: a rule reads a hyperparameter by its name",
    "group['lr']": "write lr: a rule reads a hyperparameter by its name",
    "self.param_groups[0]['lr']": "write lr: a rule reads a hyperparameter by its name",
    "state['exp_avg']": 'write m, the state with the key "exp_avg"',
    "self.state[p]['exp_avg']": 'write m, the state with the key "exp_avg"',
    "state['step']": "write t, the step count",
    "torch.zeros_like(g)": "write the number 0",
    "torch.ones(3)": "write the number 1",
    "torch.addcmul(m, g, g, value=2)": "write m + 2 * g * g",
    "g.clamp(min=0)": "write maximum(g, 0)",
    "g.clamp(max=1)": "write minimum(g, 1)",
    "g.clamp(-1, 1)": "call it by its plain name: clamp(g, -1, 1)",
    "torch.where(g > 0, g, 0)": "write where(g > 0, g, 0)",
    "math.pi": "write the number above the rule: PI = 3.14",
    "(g > 0) & (p > 0)": "join conditions with `and`",
    "~(g > 0)": "write `not` before a condition",
    "[x for x in g]": "the language has no loops and no lists",
    "(lambda x: x)(g)": "write a plain helper function in the file",
    "torch.tril(g)": "lower(x)",
    "torch.linalg.cholesky(g)": "call it by its plain name: cholesky(g)",
    "torch.median(g)": NO_SUBSTITUTE,
    "p.device": "a rule is written once for all devices",
}


@pytest.mark.parametrize("expression", IDIOMS)
def test_an_idiom_of_torch_has_a_hint_in_the_words_of_the_language(expression: str) -> None:
    text = spec("m = m + g", f"p = p - lr * m * ({expression})", states='m=state("exp_avg")')
    with pytest.raises(SpecError) as caught:
        read_spec(Spec("made", text, "made.py", 1))
    assert caught.value.hint.startswith(IDIOMS[expression])


STATEMENTS = {
    "for i in range(3): g = 2 * g": "the language has no loops: write a helper",
    "while t > 1: g = 2 * g": "the language has no loops: write a helper",
    "with torch.no_grad(): g = 2 * g": "leave it out",
    "def f(x): return x": "write the helper above the rule",
    "import math": "a spec is read, not run: leave it out",
    "print(g)": "leave it out: a rule is read and never run",
    "assert lr > 0": "write require(condition, message)",
    "m.mul_(0.9)": "write m = m * 0.9",
    "p.add_(g, alpha=-lr)": "write p = p + (-lr) * g",
    "p.data.add_(g)": "write p = p + g",
    "m.lerp_(g, 0.1)": "write m = lerp(m, g, 0.1)",
    "m.zero_()": "write m = 0",
    "m.mul_(0.9).add_(g, alpha=1 - 0.9)": "write m = m * 0.9 + (1 - 0.9) * g",
    "m.add_(g).mul_(lr)": "write m = (m + g) * lr",
    "m.mul_(1 - lr)": "write m = m * (1 - lr)",
    "m.mul_(0.9).addcmul_(g, g, value=1 - lr)": "write m = m * 0.9 + (1 - lr) * g * g",
    "m.mul_(0.9).clamp_(-1, 1)": "write m = clamp(m * 0.9, -1, 1)",
    "m.mul_(0.9).median_()": "write assignments instead",
    "p.data = g": "assign to the name: p = …",
    "state['exp_avg'] = g": "assign to the state: m = …",
    "m[0] = 1": "assign all of it: m = where(",
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_of_an_optimizers_step_has_a_hint(statement: str) -> None:
    text = spec(statement, "m = m + g", "p = p - lr * m", states='m=state("exp_avg")')
    with pytest.raises(SpecError) as caught:
        read_spec(Spec("made", text, "made.py", 1))
    assert caught.value.hint.startswith(STATEMENTS[statement])


@pytest.mark.parametrize(
    ("signature", "hint"),
    [
        ("p, g, /, t, *, lr=hyper(1)", "an input stands before `/`: (p, g, t, /, …)"),
        ('p, g, m=state("m"), /, *, lr=hyper(1)', "move it behind the `/`: states stand"),
        ("p, g, lr=hyper(1), /", "move it behind the `*`: hyperparameters stand"),
    ],
)
def test_a_name_in_the_wrong_part_of_a_signature_has_a_hint(signature: str, hint: str) -> None:
    text = f'@optimizer()\ndef Made({signature}):\n    """Made."""\n    p = p - lr * g\n'
    with pytest.raises(SpecError) as caught:
        read_spec(Spec("made", text, "made.py", 1))
    assert caught.value.hint.startswith(hint)


def test_coefficients_written_out_are_told_to_be_a_hyperparameter() -> None:
    text = spec('require(ndim(p) == 2, "")', "p = p - lr * orthogonalize(g, (2, -1.5, 0.5), 5, 0)")
    with pytest.raises(SpecError, match="takes the name of a hyperparameter") as caught:
        read_spec(Spec("made", text, "made.py", 1))
    assert caught.value.hint.startswith("declare it after `*`: ns_coefficients=hyper(")


@pytest.mark.parametrize(
    ("call", "proposed"),
    [
        ("maximun(g, 0)", "maximum"),
        ("maximun(g)", None),  # takes two arguments
        ("colz(p)", "cols"),
        ("colz(g)", None),  # takes only the parameter
    ],
)
def test_a_proposed_word_takes_the_same_arguments(call: str, proposed: str | None) -> None:
    hint = error_of(call).hint
    if proposed:
        assert hint == f"did you mean `{proposed}`?"
    else:
        assert "did you mean" not in hint


def names_after_cells(*cells: str) -> dict[str, Any]:
    """Run texts one after the other, as a notebook runs its cells; return the names they leave."""
    names: dict[str, Any] = {"optimizer": optimizer, "hyper": hyper, "__name__": "__main__"}
    for number, text in enumerate(cells):
        file = f"<cell {number}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), names)
    return names


HELPER = "def halve(x):\n    return x / SIX\nSIX = 6\n"
RULE = '''@optimizer()
def Mine(p, g, /, *, lr=hyper(0.1)):
    """Mine."""
    p = p - lr * {0}
'''


def test_the_error_for_a_name_of_another_cell_says_to_join_the_cells() -> None:
    with pytest.raises(SpecError) as caught:
        read_spec(names_after_cells(HELPER, RULE.format("halve(g)"))["Mine"])
    assert caught.value.hint == (
        "if `halve` is a helper of yours, put it into the same cell as the rule"
    )
    with pytest.raises(SpecError, match="unknown name `SIX`") as caught:
        read_spec(names_after_cells(HELPER, RULE.format("SIX * g"))["Mine"])
    assert caught.value.hint.endswith("or put it into the same cell")
    read_spec(names_after_cells(HELPER + RULE.format("halve(g)"))["Mine"])


def test_a_notebook_shows_the_message_alone() -> None:
    """IPython prints all frames of the reader, unless the error has `_render_traceback_()`."""
    error = error_of("nothing")
    assert error._render_traceback_() == f"SpecError: {error}".split("\n")
    assert len(error._render_traceback_()) == 4
