"""Rules of the catalogue in plain torch, each written anew from its paper or its authors' code.

`SOURCES` has the papers and the code that they were written from, by names of the catalogue. The
docstring of a rule's step says only which part of its source it follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from optgen.verification.case import Case
from optgen.verification.references import (
    adam_descendants,
    changed_moments,
    eight_bits,
    learning_rate_free,
    low_rank,
    moments,
    momentum,
    newton_schulz,
    whole_matrices,
)

_MODULES = (
    *(moments, changed_moments, adam_descendants, momentum),
    *(eight_bits, learning_rate_free, low_rank, newton_schulz, whole_matrices),
)
CASES: tuple[Case, ...] = tuple(case for module in _MODULES for case in module.CASES)
"""The cases of all rules. An optimizer has one or two."""


_ARXIV, _GITHUB = "https://arxiv.org/abs/", "https://github.com/"


@dataclass(frozen=True)
class Source:
    """A paper, or code of other authors."""

    title: str
    address: str


def _paper(number: str, code: str = "") -> Source:
    return Source(f"paper, {code}" if code else "paper", _ARXIV + number)


def _code(repository: str, path: str = "") -> Source:
    return Source(repository, _GITHUB + repository + path)


_NANOGPT = "KellerJordan/modded-nanogpt"
SOURCES: dict[str, Source] = {
    "accsgd": _paper("1803.05591", "rahulkidambi/AccSGD"),
    "acprop": _paper("2110.05454", "optax"),
    "adabelief": _paper("2010.07468", "package"),
    "adabound": _paper("1902.09843", "Luolc/AdaBound"),
    "adafactor_bv": _paper("2106.04560", "timm"),
    "adafactor_hf": _paper("1804.04235", "transformers"),
    "adagc": _paper("2502.11034", "pytorch_optimizer"),
    "adahessian": _paper("2006.00719"),
    "adai": _paper("2006.15815", "zeke-xie/adaptive-inertia-adai"),
    "adam_h": _code(_NANOGPT, "/pull/272"),
    "adam_mini": _code("zyushun/Adam-mini"),
    "adamaxw": _paper("1412.6980", "optax"),
    "adamc": _paper("2506.02285"),
    "adamg": _paper("2405.04376", "pytorch_optimizer"),
    "adamod": _paper("1910.12249", "lancopku/AdaMod"),
    "adamp": _paper("2006.08217", "clovaai/AdamP"),
    "adams": _paper("2011.11152"),
    "adamuon": _code("Chongjie-Si/AdaMuon"),
    "adamw_8bit": _paper("2110.02861", "8-bit codes written independently"),
    "adan": _paper("2208.06677", "sail-sg/Adan"),
    "adanorm": _paper("2210.06364"),
    "adapnm": _paper("2103.17182"),
    "adasmooth": _paper("2204.00825", "pytorch_optimizer"),
    "adatam": _paper("2412.18790", "pytorch_optimizer"),
    "ademamix": _paper("2409.03137", "apple/ml-ademamix"),
    "adopt": _paper("2411.02853"),
    "aggmo": _paper("1804.00325"),
    "aida": _paper("2203.13273"),
    "amos": _paper("2210.11693", "pytorch_optimizer"),
    "amuse": _paper("2605.22432", "rwth-i6/returnn"),
    "ano": _paper("2508.18258", "pytorch_optimizer"),
    "apollo": _code("zhuhanqing/APOLLO"),
    "apollo_dqn": _paper("2009.13586", "XuezheMax/apollo"),
    "aro": _code("microsoft/dion"),
    "avagrad": _paper("1912.01823"),
    "bcos": _paper("2507.08963", "pytorch_optimizer"),
    "came": _paper("2307.02047"),
    "cocob": _paper("1705.07795", "optax"),
    "conda": _code("jie040109/Conda"),
    "dadapt_adam": _paper("2301.07733", "facebookresearch/dadaptation"),
    "diffgrad": _paper("1909.11015"),
    "dion": _code("microsoft/dion"),
    "dog": _paper("2302.12022", "optax"),
    "dowg": _paper("2305.16284", "optax"),
    "dual_adam": _paper("2603.07122", "pytorch_optimizer"),
    "exadam": _paper("2412.20302", "AhmedMostafa16/EXAdam"),
    "fadam": _paper("2405.12807", "lessw2020/FAdam_PyTorch"),
    "fira": _code("xichen-fy/Fira"),
    "focus": _paper("2501.12243", "pytorch_optimizer"),
    "fromage": _paper("2002.03432", "jxbz/fromage"),
    "ftrl": Source("paper", "https://research.google.com/pubs/archive/41159.pdf"),
    "galore": _code("jiaweizzhao/GaLore"),
    "grams": _paper("2412.17107"),
    "gravity": _paper("2101.09192", "pytorch_optimizer"),
    "grokfast_adamw": _paper("2405.20233", "pytorch_optimizer"),
    "kahan_adamw": Source("paper of AdamW, without rounding", _ARXIV + "1711.05101"),
    "kate": _paper("2403.02648"),
    "kl_soap": _code("yorkerlin/KL-Methods"),
    "kron": _code("lixilinx/psgd_torch"),
    "lamb": _paper("1904.00962", "timm"),
    "laprop": _paper("2002.04839", "timm"),
    "lars": _paper("1708.03888", "timm"),
    "lion": _paper("2302.06675"),
    "lion_8bit": _paper("2110.02861", "8-bit codes written independently"),
    "madgrad": _paper("2101.11075", "timm"),
    "mano": _code("xie-lab-ml/Mano-Restriking-Manifold-Optimization-for-LLM-Training"),
    "mars": _code("AGI-Arena/MARS"),
    "msvag": _paper("1705.07774"),
    "muon_clip": Source("report of Kimi K2", _ARXIV + "2507.20534"),
    "muon_h": _code(_NANOGPT, "/pull/267"),
    "nadamw": _code("huggingface/pytorch-image-models"),
    "nero": _code("jxbz/nero"),
    "normuon": _code("zichongli5/NorMuon"),
    "novograd": _paper("1905.11286", "timm"),
    "one_sided_shampoo": _paper("2503.10537"),
    "optimistic_sgd": _paper("1711.00141", "optax"),
    "padam": _paper("1806.06763", "uclaml/Padam"),
    "pid": _code("tensorboy/PIDOptimizer"),
    "pion": _code("Sphere-AI-Lab/pion"),
    "pnm": _paper("2103.17182"),
    "polar_muon": _code(_NANOGPT),
    "prism": _paper("2602.03096", "optax"),
    "prodigy": _paper("2306.06101", "konstmish/prodigy"),
    "qhadam": _paper("1810.06801", "facebookresearch/qhoptim"),
    "qhm": _paper("1810.06801"),
    "racs": _paper("2502.07752", "pytorch_optimizer"),
    "rmsprop_tf": _code("huggingface/pytorch-image-models"),
    "rose": _code("MatthewK78/Rose"),
    "row_wise_adagrad": _paper("1906.00091", "torchrec"),
    "schedule_free_adamw": _paper("2405.15682", "package"),
    "schedule_free_radam": _paper("2405.15682", "package"),
    "schedule_free_sgd": _paper("2405.15682", "package"),
    "scion": _code("LIONS-EPFL/scion"),
    "sgd_sai": _code("AnonymousAlethiometer/SGD_SaI"),
    "sgdp": _paper("2006.08217", "clovaai/AdamP"),
    "sgdw": _paper("1711.05101", "timm"),
    "shampoo": _paper("1802.09568", "pytorch_optimizer"),
    "signum": _paper("1802.04434"),
    "simplified_ademamix": _code("DepenM/Simplified-AdEMAMix"),
    "sm3": _paper("1901.11150"),
    "soap": _code("nikhilvyas/SOAP"),
    "sophia": _paper("2305.14342", "Liuhong99/Sophia"),
    "splus": _code("kvfrans/splus"),
    "srmm": _paper("2201.01652", "pytorch_optimizer"),
    "stable_adamw": _paper("2304.13013", "torch-optimi"),
    "stable_spam": _paper("2502.17055", "pytorch_optimizer"),
    "stosignsgd": _paper("2604.15416", "junaidaliop/zij"),
    "tam": _paper("2412.18790", "pytorch_optimizer"),
    "tiger": _code("bojone/tiger"),
    "vsgd": _paper("2404.06549", "pytorch_optimizer"),
    "yogi": Source(
        "paper, torch-optimizer",
        "https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization",
    ),
}
