"""Texts that would do harm if they ran as code, or that are hard to quote or to lay out.

`hostile_spec` and `hostile_function_spec` write such a text into every field of a spec.
"""

from __future__ import annotations

WITNESS = "witness"
"""Name of a file that a text creates in the current folder if it runs."""

_RUN = f"open('{WITNESS}', 'w').write('ran')"
_SYSTEM = f'system("touch {WITNESS}")'

TEXTS = {
    "closed docstring": f'a""" + str({_RUN}) + r"""b',
    "closed raw docstring": f'a\\""" + str({_RUN}) + r"""b',
    "closed docstring of three lines": f'a\n    """\n    {_RUN}\n    r"""\nb',
    "closed single quotes": f"a''' + str({_RUN}) + '''b",
    "closed string": f'a" + str({_RUN}) + "b',
    "closed single string": f"a' + str({_RUN}) + 'b",
    "closed message": f'a"); {_RUN}; ("b',
    "closed argument": f"a'), x=({_RUN}",
    "a quote at the end": 'a "',
    "two quotes at the end": 'a ""',
    "three quotes at the end": 'a """',
    "a quote at the beginning": '" a',
    "three quotes at the beginning": '""" a',
    "three single quotes": "'''",
    "an escaped quote": '\\"',
    "a backslash at the end": "a \\",
    "two backslashes at the end": "a \\\\",
    "a backslash and a blank at the end": "a \\ ",
    "backslashes and quotes": '\\\\""" \\\\\\""" \\""""',
    "escapes": "\\n \\x41 \\u0041 \\N{BULLET} \\101 \\",
    "a comment in C": "a */ int x; /* b",
    "a comment in C++": "// a \\",
    "a trigraph": "what ??/",
    "trigraphs and backslashes": "what ??/\\??/ \\ ??/",
    "a trigraph on two lines": "what ??/\nint x;",
    "a directive": '#include "/etc/passwd"',
    "a header of ours": '#include "optgen/runtime/fused_cpu/include/elementwise_kernel.h"',
    "a header that is not there": '#include "optgen/runtime/fused_cpu/absent.h"',
    "two lines": "a\nint main() {}\nb",
    "a call in C++": f"a'; {_SYSTEM}; '",
    "a hash": f"a # b\n{_RUN}",
    "a variable of Jinja": "{{ 7 * 7 }} {{ algorithm.__class__.__mro__ }}",
    "a statement of Jinja": "{% if true %} {% include 'x' %} {% raw %}",
    "a comment of Jinja": "{# a #}",
    "braces": "{ } {{ }} {} {0} {lr} {lr!r:>{lr}} }} {{",
    "formats": "%s %(lr)s %% $lr ${lr} $(touch witness) `touch witness`",
    "LaTeX": "\\end{aligned} \\input{x} $x_1^2$ & # ~ 100%",
    "other letters": "Überschätzung 漢字 😀 ﬁ ｅｖａｌ",
    "tabs": "a\tb",
    "one long word": "x" * 5000,
    "many words": "word " * 500 + "end",
    "long words with braces": ("{x}" * 40 + " ") * 3 + "end",
    "long lines": "\n".join(["x" * 90, "y" * 90, " " + "z" * 90]),
    "a blank": " ",
}


def hostile_spec(text: str) -> str:
    """Return a spec with the text in every field that takes a text, and in statements.

    Generated code quotes the statements as comments.
    """
    escaped = text.replace("{", "{{").replace("}", "}}")
    return f"""from optgen.spec import *

TEXT = {text!r}


@optimizer(gradient="dense", sparse_hint=TEXT)
def Hostile(
    p, g, t, /,
    m=state("exp_avg"),
    *,
    lr=hyper(0.5, ge=0, error={escaped + "{}"!r}, about={text!r}),
    betas=hyper((0.5, 0.25), ge=0, error={escaped + "{index}{number}{}"!r}, about=TEXT),
    bent=flag(False, about={text!r}),
    mode=choice({text!r}, "other", None, error={escaped + "{}"!r}, about={text!r}),
):
    {"Doc. " + text!r}
    require(lr < 100, {escaped!r})
    require(ndim(p) < 3, {escaped + "{shape}"!r})
    beta, gamma = betas
    chosen = mode == {text!r}
    if chosen:
        m = beta * m + g
    else:
        m = g
    if mode == TEXT and t > 1 and not bent:
        m = m * where(mode == {text!r}, gamma, 2)
    p = p - lr * m
"""


def hostile_function_spec(text: str) -> str:
    """Return an `@elementwise` spec with the text in every field that takes a text."""
    escaped = text.replace("{", "{{").replace("}", "}}")
    return f"""from optgen.spec import *


@elementwise
def hostile(average, param, /, *, decay=hyper(0.5, ge=0, error={escaped + "{}"!r}, about={text!r})):
    {"Doc. " + text!r}
    require(decay < 100, {escaped!r})
    average = lerp(average, param, 1 - decay)
"""
