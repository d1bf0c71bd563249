"""Change specs at random: characters, tokens, or nodes of the syntax tree."""

from __future__ import annotations

import ast
import copy
import io
import random
import tokenize
from collections.abc import Callable, Iterator

CHARACTERS = [
    *"abgpt019 .,:;=+-*/%()[]{}<>!@#'\"\\\n\t_",
    "\r",
    "\0",
    "\f",
    "é",
    "\u2028",
    "\u202e",
]
TOKENS = """
p g t m v lr eps betas beta1 0 1 2 0.5 1e-8 1e999 -1 10**400 2**63 None True False 'p' ''
+ - * / ** % < <= == != // @ ( ) [ ] , : = is not and or if elif else return lambda for
sqrt exp log tanh sin cos atan2 floor ceil round abs sign maximum minimum where clamp lerp
sum mean norm rms max_abs row_sum row_mean row_norm row_rms col_sum col_mean col_norm col_rms
row_max_abs col_max_abs
ndim numel rows cols machine_eps factored orthogonalize fresh random rounded rounded_down
random16 rounded_at_random
transpose identity diag trace qr eigenvectors eigenvalues descending inverse_root
shape=('rows','rows')
require hyper state flag choice fixed ge=0 optional=True init='p' shape='row' shape='scalar'
when='factored' init='index' dtype='float32' tensor='always' about='x' error='{}' rows=False
eager=True
"""
EXPRESSIONS = """
p g t m lr 0 1 -1 0.5 None 1/0 0*g 2**63 -2**63 g*g -(-g) -(-lr) g**2 g**0 g**-1 abs(g)**0.5
t-1 t%2 sqrt(g) sign(g) maximum(g,0) clamp(g,-1,1) lerp(p,g,0.5) where(g>0,g,p) where(t>1,p,g)
where(lr>0,1,2) norm(g) mean(g) rms(p) max_abs(g) sum(g*p) row_mean(g) col_mean(g*g) ndim(p)
numel(p) machine_eps(p) g>0 t>1 lr>0
"""
WRAPPERS = """
{}+{} {}-{} {}*{} {}/{} {}**2 {}**-1 {}**0.5 {}%2 -{} -(-{}) 0*{} {}/0 1-{} 2**{} {}**{}
sqrt({}) exp({}) log({}) abs({}) sign({}) norm({}) mean({}) rms({}) row_mean({}) col_sum({})
tanh({}) sin({}) atan2({},{}) floor({}) round({}) row_norm({}) col_rms({})
row_max_abs({}) col_max_abs({}) sum({},over="group") rms({},over="all")
rounded({}) rounded_down({}) rounded_up({}) random({},{}) random(1,{})
rounded_at_random({},{}) random16({},2)
maximum({},0) minimum({},{}) where({}>0,{},1) where((not{}),p,g) clamp({},-1,1) lerp({},p,0.5)
(not{}) ({}is(None)) ({}>0and({}<1)) fresh({}) {}=={}
{}@{} transpose({}) {}@transpose({}) transpose({})@{} diag({}) trace({}) identity({})
qr({}@transpose({})) inverse_root({}@transpose({}),2,1) inverse_root({},{},{}) eigenvectors({})
descending({})
"""
CONDITIONS = """
t>1 lr (not(lr)) lr>0.5 t%2==0 factored(p) (not(factored(p))) ndim(p)==2 (not(t>1or(lr)))
"""

Edit = Callable[[str, random.Random], str]


def mutate(text: str, seed: int) -> str:
    """Return the text after one to three edits."""
    rng = random.Random(seed)
    edits: list[Edit] = [_edit_character, _edit_token, *[_edit_expression] * 3, _edit_statement]
    for _ in range(rng.choice((1, 1, 2, 3))):
        edit = rng.choice(edits)
        try:
            text = edit(text, rng)
        # SystemError: the tokenizer of Python 3.13.0 fails on some texts.
        except (SyntaxError, tokenize.TokenError, ValueError, IndexError, SystemError):
            text = _edit_character(text, rng)
    return text


def _edit_character(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text) + 1)
    new = rng.choice(("", rng.choice(CHARACTERS), rng.choice(CHARACTERS)))
    return text[:place] + new + text[place + rng.randrange(2) :]


def _edit_token(text: str, rng: random.Random) -> str:
    """Return the text with one token dropped, doubled or replaced."""
    kinds = (tokenize.NAME, tokenize.NUMBER, tokenize.OP, tokenize.STRING)
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type in kinds]
    token = rng.choice(tokens)
    lines = text.split("\n")
    (row, start), (last_row, end) = token.start, token.end
    if row != last_row:
        return text
    other = rng.choice(tokens).string
    new = rng.choice(
        ("", token.string * 2, other, rng.choice(TOKENS.split()), rng.choice(TOKENS.split()))
    )
    line = lines[row - 1]
    lines[row - 1] = f"{line[:start]}{new}{line[end:]}"
    return "\n".join(lines)


def _edit_expression(text: str, rng: random.Random) -> str:
    """Return the text with one expression of a rule replaced, or wrapped in another expression."""
    tree = ast.parse(text)
    places = list(_expressions(tree))
    owner, name, index, node = rng.choice(places)
    match rng.randrange(3):
        case 0:
            new = copy.deepcopy(rng.choice(places)[3])
        case 1:
            new = ast.parse(rng.choice(EXPRESSIONS.split()), mode="eval").body
        case _:
            inside = f"({ast.unparse(node)})"
            new = ast.parse(rng.choice(WRAPPERS.split()).replace("{}", inside), mode="eval").body
    if index is None:
        setattr(owner, name, new)
    else:
        getattr(owner, name)[index] = new
    return _import_all_ops(ast.unparse(ast.fix_missing_locations(tree)))


def _expressions(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int | None, ast.expr]]:
    """Yield (owner, field, index in the field or None, expression) for expressions in rules."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for top in (stmt for function in functions for stmt in function.body[1:]):
        for owner in ast.walk(top):
            for name, value in ast.iter_fields(owner):
                if isinstance(value, ast.expr) and name not in ("func", "targets"):
                    yield owner, name, None, value
                elif isinstance(value, list) and name in ("args", "values", "comparators", "elts"):
                    yield from (
                        (owner, name, i, item)
                        for i, item in enumerate(value)
                        if isinstance(item, ast.expr)
                    )


def _edit_statement(text: str, rng: random.Random) -> str:
    """Return the text with one statement dropped, doubled, moved, or put under a condition."""
    tree = ast.parse(text)
    blocks = [
        getattr(node, name)
        for node in ast.walk(tree)
        if not isinstance(node, ast.Module)
        for name in ("body", "orelse")
        if isinstance(getattr(node, name, None), list) and getattr(node, name)
    ]
    block = rng.choice(blocks)
    place = rng.randrange(len(block))
    stmt = block[place]
    match rng.randrange(5):
        case 0:
            block[place : place + 1] = [] if len(block) > 1 else [ast.Pass()]
        case 1:
            block.insert(place, copy.deepcopy(stmt))
        case 2:
            rng.choice(blocks).append(copy.deepcopy(stmt))
        case 3:
            test = ast.parse(rng.choice(CONDITIONS.split()), mode="eval").body
            block[place] = ast.If(test, [stmt], [])
        case _:
            test = ast.parse(rng.choice(CONDITIONS.split()), mode="eval").body
            other = copy.deepcopy(rng.choice(rng.choice(blocks)))
            block[place] = ast.If(test, [stmt], [other])
    return _import_all_ops(ast.unparse(ast.fix_missing_locations(tree)))


def _import_all_ops(text: str) -> str:
    """Return the text with an import of all ops; without it most edits would end in one error."""
    return text.replace(
        "from optgen.spec import", "from optgen.spec import *\nfrom optgen.spec import", 1
    )
