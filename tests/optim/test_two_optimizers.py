"""Test how two optimizers share the parameters of models with the layouts of real ones."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from logs import collect_logs
from optim import small_models as models
from spec_files import spec_file
from torch import nn

import optgen
from optgen import modifiers, optim
from optgen.optim import ChainedOptimizer, create_optimizer

# What the second optimizer gets besides vectors; the first gets all other parameters.
CASES: dict[str, tuple[nn.Module, list[str]]] = {
    "GPT, positions first": (models.GPT(), ["w?e.weight", "lm_head.weight"]),
    "GPT, tied head": (models.GPT(tied=True), ["w?e.weight"]),
    "GPT, padded head": (models.GPT(padded=64), ["w?e.weight", "lm_head.weight"]),
    "GPT of one block": (models.GPT(layers=1), ["w?e.weight", "lm_head.weight"]),
    "GPT, head first": (models.FusedGPT(), ["lm_head.weight", "transformer.w?e.weight"]),
    "GPT in a wrapper": (
        nn.DataParallel(models.FusedGPT()),
        ["module.lm_head.weight", "module.transformer.w?e.weight"],
    ),
    "value head": (
        models.WithValueHead(),
        ["pretrained_model.w?e.weight", "pretrained_model.lm_head.weight", "v_head.2.weight"],
    ),
    "BERT": (
        models.BERT(),
        ["*_embeddings.weight", "cls.decoder.weight", "cls.seq_relationship.weight"],
    ),
    "Whisper": (
        models.Whisper(),
        ["*.embed_positions*", "decoder.embed_tokens.weight", "proj_out.weight"],
    ),
    "ViT": (models.ViT(), ["head.weight", "cls_token", "pos_embed"]),
    "mixture of experts": (models.MoE(), ["tokens.weight", "output.weight", "*.down_bias"]),
    "speech": (models.SpeechModel(), ["lm_head.weight"]),
    "MusicGen": (models.MusicGen(), ["embed_tokens.?.weight", "lm_heads.?.weight"]),
    "MusicGen as wide as its codes": (
        models.MusicGen(models.WIDTH),
        ["embed_tokens.?.weight", "lm_heads.?.weight"],
    ),
    "Mamba": (
        models.Mamba(),
        ["embedding.weight", "lm_head.weight", "*.A_log", "*.conv1d.weight", "*.dt_proj.weight"],
    ),
    "LoRA": (models.lora_gpt(), ["lm_head.lora_B.default.weight"]),
    "actor and critics": (models.ActorCritic(), ["actor.2.weight", "critic?.q.weight"]),
    "ResNet": (models.ResNet(), ["fc.weight"]),
    "autoencoder": (models.unet(), ["conv_out.weight"]),
    "LSTM": (models.LSTM(), ["encoder.weight", "decoder.weight"]),
    "parameters without modules": (
        models.RawParameters(),
        ["wte", "wpe", "lm_head", "embed.W_E", "unembed.W_U"],
    ),
    "tied head, before its table": (models.TiedHeadFirst(), ["head.weight"]),
    "experts with numbered biases": (models.NumberedExperts(), ["b1", "b2"]),
    "weights computed by hooks": (models.reparametrized(), ["2.weight_v"]),
    "parameters with names of hooks": (models.AdditiveAttention(), ["classify.weight"]),
    "a layer used twice": (models.layer_used_twice(), []),
}


def is_vector(param: torch.Tensor) -> bool:
    return sum(size > 1 for size in param.shape) < 2


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: param for name, param in model.named_parameters() if param.requires_grad}


@pytest.mark.parametrize("name", CASES)
def test_the_second_optimizer_gets_embeddings_tables_heads_and_vectors(name: str) -> None:
    model, patterns = CASES[name]
    params = trainable(model)
    if name == "LoRA":
        model.register_parameter("bias", nn.Parameter(torch.ones(2)))
        params = trainable(model)
    optimizer = create_optimizer(model, "muon", lr=0.02, others="adamw")
    expected = {
        each
        for each, param in params.items()
        if is_vector(param) or any(fnmatchcase(each, pattern) for pattern in patterns)
    }

    assert set(optimizer.split.names(1)) == expected
    assert set(optimizer.split.names(0)) == set(params) - expected
    for pattern in patterns:
        assert any(fnmatchcase(each, pattern) for each in params)


MATRIX_RULES = ("soap", "shampoo", "scion", "dion", "galore", "apollo", "one_sided_shampoo")


@pytest.mark.parametrize("name", ["muon", "normuon", "came", "kl_soap", "kron", *MATRIX_RULES])
def test_rules_for_matrices_share_a_model_alike(name: str) -> None:
    split = create_optimizer(models.ViT(), name, others="adamw").split
    views = {each.name: each.view for each in split.assignments if each.member == 0}

    assert set(split.names(1)) >= {"head.weight", "cls_token", "pos_embed", "blocks.0.ln.weight"}
    assert views["patch_embed.weight"] == (models.WIDTH, -1)
    assert views["blocks.0.mlp.0.weight"] is None
    takes_batches = name in {"muon", "kl_soap", *MATRIX_RULES} - {"scion"}
    expected = (3, -1, models.WIDTH) if takes_batches else None
    assert views["blocks.0.attention.in_proj_weight"] == expected


def test_an_elementwise_first_optimizer_needs_no_views() -> None:
    split = create_optimizer(models.ViT(), "lion", others="adamw").split

    assert {each.view for each in split.assignments} == {None}
    assert "patch_embed.weight" in split.names(0)


@pytest.mark.parametrize(("name", "is_taken"), [("muon", True), ("soap", True), ("normuon", False)])
def test_batches_of_matrices_go_to_rules_that_take_them(name: str, is_taken: bool) -> None:
    split = create_optimizer(models.MoE(), name, others="adamw").split
    (up,) = (each for each in split.assignments if each.name == "layers.0.experts.up")

    assert up.member == (0 if is_taken else 1)
    if name == "muon":
        assert up.view == (models.EXPERTS, 4 * models.WIDTH, models.WIDTH)
    if not is_taken:
        assert up.reason == "batch of matrices, which NorMuon does not take"
        assert up.reason in optim_lines(split)


def optim_lines(split: Any) -> str:
    return "\n".join(split.lines())


def test_muon_steps_convolutions_and_experts_as_matrices() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"conv": nn.Conv2d(3, 8, 3), "experts": models.Experts(), "head": nn.Linear(8, 5)}
    ).double()
    optimizer = create_optimizer(model, "muon", lr=0.1, others="adamw")
    conv, up = model["conv"].weight, model["experts"].up
    matrices = [nn.Parameter(each.detach().clone()) for each in (conv.flatten(1), *up)]
    reference = optim.Muon(matrices, lr=0.1)
    for _ in range(3):
        for param in trainable(model).values():
            param.grad = torch.randn_like(param)
        grads = [conv.grad.flatten(1), *up.grad]
        for matrix, grad in zip(matrices, grads, strict=True):
            matrix.grad = grad.clone()
        optimizer.step()
        reference.step()

    torch.testing.assert_close(conv.flatten(1), matrices[0])
    torch.testing.assert_close(up, torch.stack([*matrices[1:]]))


def test_a_view_of_the_options_is_kept() -> None:
    options = {"patch_embed.weight": {"view": (4, 4, -1)}, "pos_embed": {"view": (17, -1)}}
    split = create_optimizer(models.ViT(), "muon", others="adafactor", options=options).split
    found = {each.name: (each.member, each.view) for each in split.assignments}

    assert found["patch_embed.weight"] == (0, (4, 4, -1))
    assert found["pos_embed"] == (1, (17, -1))


def test_a_depthwise_convolution_is_no_matrix() -> None:
    split = create_optimizer(models.Mamba(), "soap", others="adamw").split

    assert "layers.0.conv1d.weight" in split.names(1)


def test_the_split_is_printed_once_and_explained() -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))
    with collect_logs("optgen.optim") as records:
        optimizers = [create_optimizer(model, "muon", others="lion") for _ in range(2)]
    line = "Muon gets 1 × matrix; Lion gets 1 × output layer (2.weight), 2 × vector"

    assert [each.getMessage() for each in records] == [f"{line} (optimizer.split has all names)"]
    assert optgen.explain(optimizers[0]).splitlines()[:2] == line.split("; ")
    assert str(optimizers[0].split).splitlines() == [
        "0.weight: Muon, matrix",
        "0.bias: Lion, vector",
        "2.weight: Lion, output layer",
        "2.bias: Lion, vector",
    ]


def test_names_override_what_modules_are() -> None:
    options = {"others_names": ["blocks.0.*"], "first_names": ["head.weight"]}
    split = create_optimizer(models.ViT(), "muon", others="adamw", **options).split

    assert "head.weight" in split.names(0)
    assert not any(name.startswith("blocks.0.") for name in split.names(0))
    with pytest.raises(ValueError, match="matches a pattern of first_names and one of others_nam"):
        create_optimizer(
            models.ViT(), "muon", others="adamw", first_names=["head.*"], others_names=["*.weight"]
        )


@pytest.mark.parametrize("option", ["others_names", "first_names"])
def test_names_without_a_second_optimizer_are_an_error(option: str) -> None:
    model = nn.Linear(2, 2)
    for model_or_params in (model, [*model.parameters()]):
        with pytest.raises(ValueError, match="give others too"):
            create_optimizer(model_or_params, "adamw", **{option: ["weight"]})


@pytest.mark.parametrize("model", [nn.Module(), nn.Linear(4, 4).requires_grad_(False)])
def test_a_model_that_does_not_train_is_an_error(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="has no trainable parameter"):
        create_optimizer(model, "muon", others="adamw")


def test_an_optimizer_without_parameters_is_an_error() -> None:
    with pytest.raises(ValueError, match="Muon gets no parameter, since AdamW gets 1 × embedding"):
        create_optimizer(nn.Embedding(4, 3), "muon", others="adamw")
    with pytest.raises(ValueError, match="AdamW gets no parameter, since SOAP gets 1 × output"):
        create_optimizer(nn.Linear(4, 3, bias=False), "soap", others="adamw")


def test_the_output_layer_stays_if_it_is_the_only_matrix() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4))

    assert create_optimizer(model, "muon", others="adamw").split.names(0) == ["1.weight"]


def mine() -> Any:
    return optgen.compose(optim.Muon, modifiers.ema(0.9))


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("muon", optim.AdamW, ["Muon", "AdamW"]),
        (optim.Muon, "adamw", ["Muon", "AdamW"]),
        (mine(), ("adamw", {"lr": 0.5}), ["MuonEma", "AdamW"]),
        ("soap", (optgen.compose("adamw", modifiers.cautious), {"lr": 0.5}), None),
        (spec_file("head_muon"), torch.optim.AdamW, ["HeadMuon", "AdamW"]),
        (str(spec_file("head_muon")), spec_file("novograd"), ["HeadMuon", "NovoGrad"]),
        (optgen.jit.named_spec(spec_file("head_muon")), "sgd", ["HeadMuon", "SGD"]),
        (torch.optim.SGD, torch.optim.AdamW, ["SGD", "AdamW"]),
    ],
)
def test_both_optimizers_may_be_names_classes_compositions_and_specs(
    first: Any, second: Any, names: list[str] | None
) -> None:
    model = models.ViT()
    optimizer = create_optimizer(model, first, lr=0.01, others=second)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()

    assert names is None or [type(each).__name__ for each in optimizer.members] == names
    assert "blocks.0.mlp.0.weight" in optimizer.split.names(0)
    assert "head.weight" in optimizer.split.names(1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: create_optimizer(m, "muon", others=("adamw", 1e-3)), TypeError, "a dict of its"),
        (lambda m: create_optimizer(m, "muon", others=("adamw", 1e-3)), TypeError, '"lr": 0.001}'),
        (lambda m: create_optimizer(m, "muon", others=3), TypeError, "name of list_optimizers"),
        (
            lambda m: create_optimizer(m, optim.AdamW(m.parameters())),
            TypeError,
            "give the class AdamW and its arguments",
        ),
        (
            lambda m: create_optimizer(m, "muon", lr=1, layer_decay=0.5, others="adamw"),
            ValueError,
            r'give others a rate, too, as in others=\("adamw", \{"lr": 1e-3\}\)',
        ),
        (lambda m: create_optimizer(m, optim.Muon), ValueError, r"\(model, Muon, others="),
    ],
)
def test_a_wrong_optimizer_is_an_error_with_a_way_out(
    call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))


def test_a_chained_optimizer_is_public() -> None:
    model = nn.Linear(2, 2)
    optimizer = ChainedOptimizer([optim.SGD([model.weight]), torch.optim.Adam([model.bias])])

    assert optimizer.split is None
    with pytest.raises(TypeError, match="takes optimizers, not 3"):
        ChainedOptimizer([3])  # type: ignore[list-item]
