"""The catalogue's classes, and others' optimizers to compare them with, if those are installed.

Other libraries come with the arguments for which they follow the catalogue's rules. An author's
package comes before other libraries, because the first installed one is the reference. A package
that computes less exactly than in float64 has a wider bound, with the reason beside it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch.optim
from torch import Tensor
from torch.optim import Optimizer

from optgen.generated.row_wise_adagrad import RowWiseAdagrad
from optgen.optim._create_optimizer import mirrored_classes
from optgen.optim._published import PUBLISHED, published_class
from optgen.verification.case import MATRICES, Case, LibraryReference, MakeReference
from optgen.verification.references.moments import DECAY, LR_AND_DECAY, ONLY_LR

Construct = Callable[[Any, list[Tensor], Mapping[str, Any]], Optimizer]


@dataclass(frozen=True, eq=False)
class Package:
    """An optimizer of a library, as the reference of a case."""

    distribution: str  # the name that pip knows
    source: str  # the address of its code or its page
    class_path: str  # the module and the class, such as "lion_pytorch:Lion"
    case: Case
    bound_reason: str = ""  # why the bound is wider than usual

    @property
    def version(self) -> str | None:
        """The installed version, or None."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return None


def construct(cls: Any, params: Any, options: Mapping[str, Any]) -> Optimizer:
    """Construct an optimizer from its class, parameters and options."""
    optimizer: Optimizer = cls(params, **options)
    return optimizer


def library_reference(
    class_path: str, options: Mapping[str, Any], make: Construct = construct
) -> MakeReference:
    """Return a function that makes a reference of a class, such as "lion_pytorch:Lion"."""

    def make_reference(initial_params: list[Tensor]) -> LibraryReference:
        module, _, name = class_path.partition(":")
        params = [tensor.clone().requires_grad_() for tensor in initial_params]
        with contextlib.redirect_stdout(io.StringIO()):  # some constructors print advice
            optimizer = make(getattr(import_module(module), name), params, options)
        if hasattr(optimizer, "train"):
            optimizer.train()
        return LibraryReference(optimizer, params)

    return make_reference


_ADAFACTOR = "transformers.optimization:Adafactor"
_GITHUB = "https://github.com/"
_REPOSITORIES = {
    "adabelief-pytorch": "juntang-zhuang/Adabelief-Optimizer",
    "adam-mini": "zyushun/Adam-mini",
    "came-pytorch": "yangluo7/CAME",
    "dadaptation": "facebookresearch/dadaptation",
    "galore-torch": "jiaweizzhao/GaLore",
    "lion-pytorch": "lucidrains/lion-pytorch",
    "prodigyopt": "konstmish/prodigy",
    "pytorch-optimizer": "kozistr/pytorch_optimizer",
    "schedulefree": "facebookresearch/schedule_free",
    "timm": "huggingface/pytorch-image-models",
    "torch": "pytorch/pytorch",
    "torch-optimi": "warner-benjamin/optimi",
    "torch-optimizer": "jettify/pytorch-optimizer",
    "transformers": "huggingface/transformers",
}
"""GitHub repositories of distributions, by the names that pip knows."""


def _construct_with_names(cls: Any, params: list[Tensor], options: Mapping[str, Any]) -> Optimizer:
    """Make an optimizer that tells weights from biases by the names of parameters."""
    names = (("mlp" if p.dim() > 1 else "bias") + str(index) for index, p in enumerate(params))
    return construct(cls, list(zip(names, params, strict=True)), options)


def _construct_with_projection(
    cls: Any, params: list[Tensor], options: Mapping[str, Any]
) -> Optimizer:
    """Make an optimizer with one group, which holds the options of the projection."""
    group_keys = ("rank", "update_proj_gap", "scale", "proj_type")
    group = {"params": params, **{key: options[key] for key in group_keys}}
    return construct(cls, [group], {k: v for k, v in options.items() if k not in group_keys})


def _package(
    name: str,
    distribution: str,
    path: str,
    options: Mapping[str, Any],
    theirs: Mapping[str, Any] | None = None,
    *,
    ours: Mapping[str, Any] | None = None,
    make: Any = construct,
    bound_reason: str = "",
    **case_fields: Any,
) -> Package:
    """Return a package. Both sides get `options`; only one side gets `theirs` or `ours`."""
    make_reference = library_reference(path, {**options, **(theirs or {})}, make)
    source = _GITHUB + _REPOSITORIES[distribution]
    return Package(
        distribution,
        source,
        path,
        Case(name, make_reference, {**options, **(ours or {})}, **case_fields),
        bound_reason,
    )


_D_ADAPTATION = {"betas": (0.9, 0.99), "weight_decay": DECAY, "d0": 1e-3, "growth_rate": 1.5}
_BETA2_99 = LR_AND_DECAY | {"betas": (0.9, 0.99)}
_WITH_MOMENTUM = LR_AND_DECAY | {"momentum": 0.9}
_PYTORCH_OPTIMIZER = "pytorch-optimizer"
_VECTORS_AND_MATRICES = ((5,), (4, 3), (2, 7))
_DECOUPLED, _COUPLED = {"weight_decouple": True}, {"weight_decouple": False}
_FLOAT32: dict[str, Any] = {"bound": 1e-6, "bound_reason": "the library keeps a number in float32"}
_FLAT: dict[str, Any] = {"shapes": ((5,), (4, 3), (), (2, 7))}
_SAME_RULES: tuple[
    tuple[str, str, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], ...
] = (
    ("accsgd", "AccSGD", LR_AND_DECAY, {}, {}),
    ("adagc", "AdaGC", LR_AND_DECAY | {"warmup_steps": 10}, _DECOUPLED, _FLOAT32),
    ("adamg", "AdamG", {"weight_decay": DECAY}, _COUPLED, {}),
    ("adams", "AdamS", LR_AND_DECAY, {}, {}),
    ("adan", "Adan", LR_AND_DECAY, {}, {}),
    ("adasmooth", "AdaSmooth", LR_AND_DECAY, {}, {}),
    ("adatam", "AdaTAM", LR_AND_DECAY, {}, _FLAT),
    ("aggmo", "AggMo", LR_AND_DECAY, {}, {}),
    ("aida", "Aida", LR_AND_DECAY, {}, {}),
    ("amos", "Amos", ONLY_LR | {"momentum": 0.9, "extra_l2": 0.01}, {}, _FLAT),
    ("ano", "Ano", LR_AND_DECAY, {}, {}),
    ("diffgrad", "DiffGrad", LR_AND_DECAY, _COUPLED, {}),
    ("dual_adam", "DualAdam", LR_AND_DECAY | {"switch_rate": 0.1}, {}, {}),
    ("exadam", "EXAdam", LR_AND_DECAY, {}, {}),
    ("focus", "FOCUS", LR_AND_DECAY, {}, {}),
    ("fromage", "Fromage", ONLY_LR | {"p_bound": 1.02}, {}, {}),
    ("ftrl", "FTRL", ONLY_LR | {"beta": 0.1, "lambda_1": 0.5, "lambda_2": 0.2}, {}, {}),
    ("gravity", "Gravity", ONLY_LR | {"alpha": 0.0}, {}, {}),
    ("grokfast_adamw", "GrokFastAdamW", LR_AND_DECAY | {"grokfast_after_step": 5}, {}, {}),
    ("kate", "Kate", LR_AND_DECAY | {"delta": 0.1}, {}, {}),
    ("laprop", "LaProp", LR_AND_DECAY, {}, _FLOAT32),
    ("madgrad", "MADGRAD", LR_AND_DECAY, {}, {}),
    ("msvag", "MSVAG", ONLY_LR, {}, {}),
    ("nero", "Nero", ONLY_LR, {}, _FLAT),
    ("novograd", "NovoGrad", LR_AND_DECAY, {}, {}),
    ("pid", "PID", _WITH_MOMENTUM, {}, {}),
    ("pnm", "PNM", LR_AND_DECAY, {}, {}),
    ("qhadam", "QHAdam", LR_AND_DECAY | {"nus": (0.7, 0.9)}, {}, _FLOAT32),
    ("qhm", "QHM", LR_AND_DECAY | {"momentum": 0.99, "nu": 0.7}, {}, {}),
    ("racs", "RACS", LR_AND_DECAY, {}, {"shapes": MATRICES}),
    ("rose", "ROSE", LR_AND_DECAY, _DECOUPLED, {"shapes": MATRICES}),
    ("sgdp", "SGDP", _WITH_MOMENTUM | {"delta": 0.9}, {}, _FLAT),
    ("srmm", "SRMM", ONLY_LR | {"memory_length": 8}, {}, {}),
    ("stable_spam", "StableSPAM", LR_AND_DECAY | {"update_proj_gap": 7}, {}, _FLAT),
    ("tam", "TAM", LR_AND_DECAY, {}, _FLAT),
    ("vsgd", "VSGD", LR_AND_DECAY, {}, {}),
)
"""Rules of pytorch_optimizer: our name, its class, common options, its own options, the case."""
LIBRARIES: tuple[Package, ...] = (
    _package("lion", "lion-pytorch", "lion_pytorch:Lion", LR_AND_DECAY),
    _package("lion", "timm", "timm.optim:Lion", LR_AND_DECAY),
    _package("lion", "torch-optimi", "optimi:Lion", LR_AND_DECAY, {"triton": False}),
    _package("lion", _PYTORCH_OPTIMIZER, "pytorch_optimizer:Lion", LR_AND_DECAY),
    _package("signum", _PYTORCH_OPTIMIZER, "pytorch_optimizer:SignSGD", LR_AND_DECAY),
    _package("tiger", _PYTORCH_OPTIMIZER, "pytorch_optimizer:Tiger", LR_AND_DECAY),
    _package(
        "prodigy", "prodigyopt", "prodigyopt:Prodigy", _D_ADAPTATION | {"use_bias_correction": True}
    ),
    _package(
        "dadapt_adam", "dadaptation", "dadaptation:DAdaptAdam", _D_ADAPTATION | {"decouple": True}
    ),
    _package("schedule_free_adamw", "schedulefree", "schedulefree:AdamWScheduleFree", LR_AND_DECAY),
    _package(
        "schedule_free_adamw",
        "schedulefree",
        "schedulefree:AdamWScheduleFree",
        LR_AND_DECAY | {"warmup_steps": 5},
        label="with a warmup",
    ),
    _package("schedule_free_sgd", "schedulefree", "schedulefree:SGDScheduleFree", LR_AND_DECAY),
    _package("schedule_free_radam", "schedulefree", "schedulefree:RAdamScheduleFree", _BETA2_99),
    _package("adafactor_hf", "transformers", _ADAFACTOR, {"weight_decay": DECAY}),
    _package(
        "adafactor_hf",
        "transformers",
        _ADAFACTOR,
        LR_AND_DECAY | {"beta1": 0.9, "scale_parameter": False},
        {"relative_step": False},
        label="with momentum",
    ),
    _package("came", "came-pytorch", "came_pytorch:CAME", LR_AND_DECAY, shapes=MATRICES),
    _package("came", _PYTORCH_OPTIMIZER, "pytorch_optimizer:CAME", LR_AND_DECAY, shapes=MATRICES),
    _package(
        "adabelief",
        "adabelief-pytorch",
        "adabelief_pytorch:AdaBelief",
        _BETA2_99,
        {"print_change_log": False},
    ),
    _package("adabelief", "timm", "timm.optim:AdaBelief", _BETA2_99),
    _package(
        "adabelief",
        "torch-optimizer",
        "torch_optimizer:AdaBelief",
        ONLY_LR | {"rectify": False, "eps": 1e-8},
        label="not rectified",
    ),
    _package("yogi", "torch-optimizer", "torch_optimizer:Yogi", LR_AND_DECAY),
    _package("adopt", "timm", "timm.optim:Adopt", LR_AND_DECAY, {"clip_exp": 0.25}),
    _package(
        "adopt",
        "timm",
        "timm.optim:Adopt",
        LR_AND_DECAY,
        {"clip_exp": 0.25, "decoupled": True},
        ours={"decouple": True},
        label="decoupled",
    ),
    _package("lamb", "timm", "timm.optim:Lamb", LR_AND_DECAY, {"max_grad_norm": None}),
    _package("lars", "timm", "timm.optim:Lars", {"weight_decay": DECAY, "momentum": 0.9}),
    _package("sgdw", "timm", "timm.optim:SGDW", _WITH_MOMENTUM | {"nesterov": True}),
    _package("sgdw", _PYTORCH_OPTIMIZER, "pytorch_optimizer:SGDW", _WITH_MOMENTUM),
    _package("rmsprop_tf", "timm", "timm.optim:RMSpropTF", _WITH_MOMENTUM),
    _package(
        "mars",
        "timm",
        "timm.optim:Mars",
        LR_AND_DECAY | {"betas": (0.95, 0.99), "betas_1d": (0.9, 0.95)},
        ours={"weight_decay_1d": DECAY},
        shapes=_VECTORS_AND_MATRICES,
    ),
    _package(
        "ademamix",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:AdEMAMix",
        LR_AND_DECAY | {"alpha": 5},
        {"weight_decouple": True},
    ),
    _package("grams", _PYTORCH_OPTIMIZER, "pytorch_optimizer:Grams", LR_AND_DECAY),
    _package("stable_adamw", "torch-optimi", "optimi:StableAdamW", LR_AND_DECAY, {"triton": False}),
    _package(
        "stable_adamw",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:StableAdamW",
        LR_AND_DECAY | {"eps": 1e-6},
        {"kahan_sum": False},
    ),
    _package(
        "adam_mini",
        "adam-mini",
        "adam_mini:Adam_mini",
        LR_AND_DECAY,
        {"verbose": False},
        make=_construct_with_names,
        shapes=((4, 3), (2, 7)),  # its biases have no weight decay
    ),
    _package(
        "galore",
        "galore-torch",
        "galore_torch:GaLoreAdamW",
        _BETA2_99 | {"rank": 2, "update_proj_gap": 200, "scale": 0.25},
        {"proj_type": "std", "no_deprecation_warning": True},
        make=_construct_with_projection,
        shapes=MATRICES,
        bound=1e-6,
        bound_reason="the package decomposes gradients in float32",
    ),
    _package(
        "soap",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:SOAP",
        {},
        shapes=((4, 4), (3, 3), (6,)),
        bound=1e-6,
        bound_reason="the library updates its eigenbases in float32",
    ),
    _package(
        "shampoo",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:Shampoo",
        {"lr": 0.1},
        {"matrix_eps": 1e-4},
        shapes=((5, 3), (3, 5), (4, 4)),
    ),
    _package(
        "scion",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:SCION",
        {"scale": 50.0, "momentum": 0.1},
        {"constraint": True},
        shapes=MATRICES,
        bound=1e-2,
        bound_reason="both sides iterate in bfloat16",
    ),
    _package("kahan_adamw", "torch", "torch.optim:AdamW", LR_AND_DECAY, {"foreach": False}),
    _package(
        "row_wise_adagrad",
        "torch",
        "torch.optim:Adagrad",
        LR_AND_DECAY | {"lr_decay": 0.1, "initial_accumulator_value": 0.2},
        {"foreach": False},
        label="tables of one column",
        shapes=((6, 1), (3, 1)),
    ),
    *(
        _package(name, _PYTORCH_OPTIMIZER, f"pytorch_optimizer:{cls}", options, theirs, **case)
        for name, cls, options, theirs, case in _SAME_RULES
    ),
    _package(
        "adabound",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:AdaBound",
        LR_AND_DECAY | {"final_lr": 0.05, "gamma": 0.1},
        _COUPLED,
    ),
    _package(
        "adai",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:Adai",
        LR_AND_DECAY | {"dampening": 0.5},
    ),
    _package(
        "adamod",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:AdaMod",
        LR_AND_DECAY,
        {"betas": (0.9, 0.99, 0.95)},
        ours={"betas": (0.9, 0.99), "beta3": 0.95},
    ),
    _package(
        "adapnm",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:AdaPNM",
        LR_AND_DECAY,
        {"ams_bound": False},
        ours={"amsgrad": False},
        bound=1e-8,
        bound_reason="the library adds 1e-15 to the second moment",
    ),
    _package(
        "apollo_dqn",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:ApolloDQN",
        LR_AND_DECAY | {"rebound": "belief", "weight_decay_type": "stable"},
        {"warmup_steps": 0},
        ours={"warmup": 0},
    ),
    _package(
        "conda",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:Conda",
        _BETA2_99,
        shapes=((5, 3), (3, 5), (4, 4)),
        bound=1e-6,
        bound_reason="the library decomposes momenta in float32",
    ),
    _package(
        "splus",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:SPlus",
        {},
        shapes=((4, 4), (3, 3), (6,)),
        bound=1e-5,
        bound_reason="the library finds its eigenbases in float32",
    ),
    _package(
        "padam",
        _PYTORCH_OPTIMIZER,
        "pytorch_optimizer:PAdam",
        LR_AND_DECAY,
        ours={"amsgrad": False},
    ),
    _package("adamp", "timm", "timm.optim:AdamP", LR_AND_DECAY | {"delta": 0.9}, **_FLAT),
    _package(
        "adafactor_bv",
        "timm",
        "timm.optim:AdafactorBigVision",
        LR_AND_DECAY | {"clipping_threshold": 0.7, "decay_offset": 3},
        {"min_dim_size_to_factor": 1, "momentum_dtype": torch.float64},
        **_FLAT,
    ),
    _package("adan", "timm", "timm.optim:Adan", LR_AND_DECAY),
    _package(
        "adan", "timm", "timm.optim:Adan", LR_AND_DECAY | {"no_prox": True}, label="without prox"
    ),
    _package("laprop", "timm", "timm.optim:LaProp", LR_AND_DECAY, **_FLOAT32),
    _package("madgrad", "timm", "timm.optim:MADGRAD", LR_AND_DECAY | {"decoupled_decay": True}),
    _package("nadamw", "timm", "timm.optim:NAdamW", LR_AND_DECAY),
    _package(
        "novograd",
        "timm",
        "timm.optim:NvNovoGrad",
        LR_AND_DECAY | {"grad_averaging": True},
        **_FLOAT32,
    ),
)


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


TORCH_CASES = (
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
    return Package("torch", page, f"torch.optim:{title}", case, bound_reason)


TORCH = tuple(map(_as_package, TORCH_CASES))
"""The cases, each with the package torch, which is always installed."""


KEYED = {"row_wise_adagrad": RowWiseAdagrad}
"""Classes that `optgen.keyed` has, and `optgen.optim` has not."""
NAMES = tuple(sorted({*CLASSES, *KEYED, *PUBLISHED}))
"""The names of all optimizers of the catalogue."""


def class_of(name: str) -> type[torch.optim.Optimizer]:
    """Return the class with a name of the catalogue."""
    if name in PUBLISHED:
        return published_class(name)
    return KEYED.get(name) or CLASSES[name]
