"""The mirror of torch.optim, and cases that compare each class with torch's."""

from __future__ import annotations

from typing import Any

from optgen.optim._create_optimizer import mirrored_classes
from optgen.verification.case import MATRICES, Case
from optgen.verification.packages import Package, library_reference

_SPEC_NAMES = {"sparseadam": "sparse_adam"}
"""Names of specs that differ from the names of their classes in lower case."""
CLASSES = {_SPEC_NAMES.get(key, key): cls for key, cls in mirrored_classes().items()}
"""The mirror's classes by the names of their specs; LBFGS has none."""
TABLE_SHAPES = ((6, 5), (7, 1), (4, 2, 3))
"""Shapes of parameters with sparse gradients."""
WITH_DECAY = {"lr": 0.01, "weight_decay": 0.1}


def _case(name: str, options: dict[str, Any], **case_fields: Any) -> Case:
    """Return a case with torch's class, in its for-loop form if it has several forms."""
    theirs = {} if name in ("lbfgs", "muon", "sparse_adam") else {"foreach": False}
    make_reference = library_reference(
        f"torch.optim:{CLASSES[name].__name__}", {**options, **theirs}
    )
    return Case(name, make_reference, options, **case_fields)


CASES = (
    _case("adadelta", {"lr": 0.1, "weight_decay": 0.1}),
    _case("adafactor", WITH_DECAY),
    _case("adagrad", WITH_DECAY | {"lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    _case("adam", WITH_DECAY),
    _case("adam", WITH_DECAY | {"amsgrad": True}, label="amsgrad"),
    _case("adamax", WITH_DECAY),
    _case("adamw", WITH_DECAY),
    _case("adamw", WITH_DECAY | {"amsgrad": True}, label="amsgrad"),
    _case("asgd", WITH_DECAY | {"t0": 5, "lambd": 0.1}),
    _case("lbfgs", {"max_iter": 2, "history_size": 3}, with_closure=True),
    _case(
        "lbfgs",
        {"max_iter": 2, "line_search_fn": "strong_wolfe"},
        label="with a line search",
        with_closure=True,
    ),
    _case("muon", {"lr": 0.02}, shapes=MATRICES, bound=5e-3),
    _case("nadam", WITH_DECAY),
    _case("radam", WITH_DECAY),
    _case("rmsprop", WITH_DECAY | {"centered": True, "momentum": 0.9}),
    _case("rprop", {"step_sizes": (1e-3, 0.1)}),
    _case("sgd", WITH_DECAY | {"momentum": 0.9, "nesterov": True}),
    _case("sgd", WITH_DECAY, label="without momentum"),
    _case("sparse_adam", {"lr": 0.01}, shapes=TABLE_SHAPES, sparse_gradients=True),
)


def _as_package(case: Case) -> Package:
    title = CLASSES[case.name].__name__
    page = f"https://docs.pytorch.org/docs/stable/generated/torch.optim.{title}.html"
    bound_reason = "both sides iterate in bfloat16" if case.name == "muon" else ""
    return Package("torch", page, case, bound_reason)


TORCH = tuple(map(_as_package, CASES))
"""The cases, each with the package torch, which is always installed."""
