"""Write the code that uses an optimizer: the one-line change, and a complete script."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from optgen.ir.algorithm import Algorithm
from website.entries import Entry

_ARGUMENTS = {
    "adafactor": "lr=1e-2",
    "adamc": "max_lr=1e-3",
    "sparse_adam": "lr=1e-3",
}
"""Arguments in the examples. For other optimizers, examples pass the default `lr` of the spec."""

_FIRST_STEP = re.compile(r"(?:^|\. )(The first step only [^.]*)\.")
"""The remark in a spec that its first step leaves the parameters as they are."""

_HESSIAN = (
    "def hessian_diagonal(loss):",
    '    """Return Hutchinson\'s estimate of the diagonal of the Hessian."""',
    "    params = list(model.parameters())",
    "    grads = torch.autograd.grad(loss, params, create_graph=True)",
    "    signs = [torch.randint_like(p, 2) * 2 - 1 for p in params]",
    "    products = torch.autograd.grad(grads, params, signs, retain_graph=True)",
    "    return [s * product for s, product in zip(signs, products)]",
)


@dataclass(frozen=True)
class Needs:
    """Needs of an optimizer beyond a call of `step` with dense gradients of any shape."""

    matrices_only: bool  # vectors need a second optimizer
    embeddings_only: bool  # the optimizer is for the weights of embeddings
    sparse_only: bool  # the optimizer takes no dense gradients
    inputs: tuple[str, ...]  # the extra inputs of `step`
    has_modes: bool  # the optimizer has `train()` and `eval()`
    quantized_key: str  # the key of a state of 8 bits; "" if it has none
    first_step: str  # what the first step does instead of moving parameters; "" if it moves them


def needs_of(entry: Entry) -> Needs:
    """Return the needs of an optimizer. A trial shows whether it takes vectors."""
    algorithm = entry.algorithm
    return Needs(
        matrices_only=not takes_vectors(entry) and entry.package == "optgen.optim",
        embeddings_only=entry.package == "optgen.keyed",
        sparse_only=algorithm.gradient == "sparse_only",
        inputs=tuple(state.step_argument for state in algorithm.extra_inputs()),
        has_modes=bool(algorithm.programs),
        quantized_key=next((s.key for s in algorithm.states if s.is_quantized), ""),
        first_step=match[1] if (match := _FIRST_STEP.search(entry.remarks)) else "",
    )


def takes_vectors(entry: Entry) -> bool:
    """Tell whether the constructor accepts a parameter with one axis."""
    return accepts_shape(entry, (4,))


def accepts_shape(entry: Entry, shape: tuple[int, ...]) -> bool:
    """Tell whether the constructor accepts a parameter of a shape."""
    try:
        entry.cls([torch.zeros(shape)], **_values(entry))
    except ValueError:
        return False
    return True


def _values(entry: Entry) -> dict[str, float]:
    """Return the arguments that the examples pass, as numbers."""
    pairs = (each.split("=") for each in arguments(entry).split(", ") if each)
    return {name: float(value) for name, value in pairs}


def arguments(entry: Entry) -> str:
    """Return the arguments that the examples pass, as source code."""
    if entry.name in _ARGUMENTS:
        return _ARGUMENTS[entry.name]
    lr = entry.algorithm.hyper("lr")
    return f"lr={_short(lr.default)}" if lr and isinstance(lr.default, int | float) else ""


def _short(value: float) -> str:
    """Return a learning rate as people write it: 1e-3 and not 0.001."""
    mantissa, _, exponent = f"{value:e}".partition("e")
    digits = mantissa.rstrip("0").rstrip(".")
    return f"{digits}e{int(exponent)}" if 0 < value < 0.01 else f"{value:g}"


def old(entry: Entry) -> str:
    """Return the call of torch that the optimizer replaces in a training script."""
    needs = needs_of(entry)
    if entry.in_torch:
        params = "matrices" if needs.matrices_only else "model.parameters()"
        return f"torch.{_call(entry, params).removeprefix('optgen.')}"
    name = "SparseAdam" if needs.sparse_only else "AdamW"
    return f"torch.optim.{name}(model.parameters(), lr=1e-3)"


def adopted(entry: Entry) -> str:
    """Return the lines of a training script that make the optimizer."""
    needs = needs_of(entry)
    if needs.matrices_only:
        imported = "from optgen.optim import create_optimizer"
        return f"{imported}\n\noptimizer = {_with_others(entry)}"
    return f"import optgen\n\noptimizer = {_call(entry, 'model.parameters()')}"


def _with_others(entry: Entry) -> str:
    """Return the call that makes an optimizer of matrices, and AdamW for all other parameters."""
    args = ["model", f'"{entry.name}"', arguments(entry), 'others=("adamw", {"lr": 1e-3})']
    return f"create_optimizer({', '.join(filter(None, args))})"


def _call(entry: Entry, params: str) -> str:
    args = arguments(entry)
    return f"{entry.package}.{entry.title}({params}{', ' * bool(args)}{args})"


def script(entry: Entry) -> str:
    """Return a script that trains with the optimizer and says how its steps run."""
    needs = needs_of(entry)
    lines = ["import torch", "", "import optgen", *_imports(entry, needs), ""]
    lines += ["torch.manual_seed(0)", *_model(needs), *_optimizer(entry, needs)]
    if "hessian" in needs.inputs:
        lines += ["", "", *_HESSIAN, "", ""]
    else:
        lines.append("")
    lines += _loop(needs)
    if needs.has_modes:
        lines.append("optimizer.eval()  # the averaged weights; optimizer.train() goes back")
    if needs.quantized_key:
        lines.append(
            f'print(optimizer.state[model[0].weight]["{needs.quantized_key}"].dtype)  # in 8 bits'
        )
    return "\n".join([*lines, "print(optgen.explain(optimizer))"])


def _imports(entry: Entry, needs: Needs) -> list[str]:
    if needs.matrices_only:
        return ["from optgen.optim import create_optimizer"]
    return [f"from {entry.package} import {entry.title}"]


def _model(needs: Needs) -> list[str]:
    if needs.embeddings_only or needs.sparse_only:
        sparse = ", sparse=True" * needs.sparse_only
        return [
            f"model = torch.nn.Embedding(100, 8{sparse})",
            "inputs, targets = torch.randint(100, (32,)), torch.randn(32, 8)",
        ]
    first, inner, last = (64, 128, 64) if needs.quantized_key else (16, 32, 8)
    layers = f"torch.nn.Linear({first}, {inner}), torch.nn.Tanh(), torch.nn.Linear({inner}, {last})"
    return [
        "model = torch.nn.Sequential(",
        f"    {layers}",
        ")",
        f"inputs, targets = torch.randn(64, {first}), torch.randn(64, {last})",
    ]


def _optimizer(entry: Entry, needs: Needs) -> list[str]:
    if needs.matrices_only:
        return [f"optimizer = {_with_others(entry)}"]
    args = arguments(entry)
    return [f"optimizer = {entry.title}(model.parameters(){', ' * bool(args)}{args})"]


def _loop(needs: Needs) -> list[str]:
    lines = ["for step in range(20):"]
    lines += ["    loss = (model(inputs) - targets).square().mean()"]
    lines += ["    hessian = hessian_diagonal(loss)"] if "hessian" in needs.inputs else []
    call = f"    optimizer.step({_step_arguments(needs)})"
    lines += ["    loss.backward()", call + (f"  # {why}" if (why := _first_step(needs)) else "")]
    lines += ["    model.zero_grad()", '    print(f"step {step}: loss {loss:.4f}")']
    return lines


def _first_step(needs: Needs) -> str:
    """Return a remark on the first step, and on equal losses after it; "" if there is none."""
    remark = f"{needs.first_step[:1].lower()}{needs.first_step[1:]}"
    if not remark or needs.matrices_only:  # a second optimizer changes the loss
        return remark
    return f"{remark}, so steps 0 and 1 print the same loss"


def _step_arguments(needs: Needs) -> str:
    """Return the arguments of `step`: a Hessian's diagonal, and no other extra inputs."""
    return ", ".join(f"{key}={key}" for key in needs.inputs if key == "hessian")


def notes(algorithm: Algorithm, needs: Needs) -> list[str]:
    """Return what users should know before they use the code in their own script."""
    sentences = []
    if needs.matrices_only:
        sentences.append(
            f"{algorithm.name} takes matrices only. `create_optimizer` gives biases, norms, "
            "embeddings and output layers to the second optimizer, and shows convolutions as "
            "matrices. It logs [who gets what](../choose.md#who-gets-what). "
            '`others_names=["head.*"]` gives the second further parameters by their names.'
        )
    if needs.inputs:
        keys = ", ".join(f"`{key}`" for key in needs.inputs)
        sentences.append(
            f"`step` takes {keys}: a list with a tensor or None for each parameter "
            "([extra inputs](../spec-language.md#extra-inputs))."
        )
    if needs.has_modes:
        sentences.append(
            "Call `optimizer.eval()` before you evaluate or save the model, and "
            "`optimizer.train()` before you go on."
        )
    if needs.sparse_only:
        sentences.append(
            "It takes sparse gradients only, such as those of `Embedding(sparse=True)`."
        )
    return sentences
