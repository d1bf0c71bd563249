"""Test docs/configuration-files.md: its examples run, and train as optimizers made in code do."""

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import pair
from frameworks.configuration_page import SECTIONS, distance_from_start, run, write_files
from frameworks.tiny_model import BATCH, LR, Data, Model, deviation, weights
from torch import Tensor

from optgen import optim
from optgen.frameworks.arguments import read_arguments

LIMIT = 240.0  # seconds, because importing deepspeed is slow


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "written",
    [
        "betas=(0.9, 0.95), mode=fast, eps=1e-6",
        '{"betas": [0.9, 0.95], "mode": "fast", "eps": 1e-6}',
        {"betas": [0.9, 0.95], "mode": "fast", "eps": 1e-6},
    ],
)
def test_arguments_are_read_as_a_call_as_json_and_as_yaml(written: Any) -> None:
    found = read_arguments(written)
    assert {**found, "betas": tuple(found["betas"])} == {
        "betas": (0.9, 0.95),
        "mode": "fast",
        "eps": 1e-6,
    }
    assert read_arguments(None) == read_arguments(" ") == {}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *(("true", True), ("True", True), ("false", False), ("False", False)),
        *(("null", None), ("None", None), ("inf", float("inf")), ("-inf", float("-inf"))),
        *(("(0.9, null)", (0.9, None)), ("[true, -inf]", [True, float("-inf")])),
        *(("'false'", "false"), ("falsely", "falsely")),
    ],
)
def test_bare_words_of_json_and_python_are_their_values(word: str, value: Any) -> None:
    found = read_arguments(f"a=1, fused={word}")
    assert found == {"a": 1, "fused": value}
    assert type(found["fused"]) is type(value)


def test_a_bare_nan_is_a_number() -> None:
    assert math.isnan(read_arguments("eps=nan")["eps"])
    assert math.isnan(read_arguments('{"eps": NaN}')["eps"])


DEEP = "[" * 100_000
UNREADABLE: list[Any] = [
    *("0.9", "betas=", "lr=f(1)", "**x", "a=1) + f(b=2", "a=1)(b=2", "{1}", "a={[]: 1}", "a=\0"),
    *("a=(fast, 1)", f"a={DEEP}", f"a={'-' * 100_000}1", f'{{"a": {DEEP}', "lr=1e-3,lr=2"),
    *('{"lr": 1, "lr": 2}', '{"a": {"b": 1, "b": 2}}', 5, 0, False, b"lr=1", [1], ("lr", 1)),
    {1: 2},
]


@pytest.mark.parametrize("written", UNREADABLE, ids=range(len(UNREADABLE)))
def test_what_cannot_be_read_says_how_to_write_it(written: Any) -> None:
    with pytest.raises(ValueError, match=r"write them as in a call, betas=\(0.9, 0.95\)") as caught:
        read_arguments(written)
    start, end = repr(written)[:20], repr(written)[-20:]
    assert start in str(caught.value)
    assert end in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("written", ["lr=1e-3, lr=2", '{"lr": 1, "lr": 2}'])
def test_a_name_that_is_given_twice_is_in_the_error(written: str) -> None:
    with pytest.raises(ValueError, match="lr is given twice"):
        read_arguments(written)


@pytest.mark.parametrize("name", ["name", "model_or_params", "params"])
def test_names_that_are_given_elsewhere_are_refused(name: str) -> None:
    from optgen.frameworks.deepspeed import take_optimizer

    message = f"hold '{name}', which is given elsewhere: take it out"
    for written in (f"{name}=lion", f'{{"{name}": "lion"}}', {name: "lion"}):
        with pytest.raises(ValueError, match=message):
            read_arguments(written)
        with pytest.raises(ValueError, match=message):
            take_optimizer({"optimizer": {"type": "adamw", "params": written}})


def test_arguments_of_hugging_face_name_no_optimizer_and_no_model() -> None:
    from transformers import TrainingArguments

    from optgen.frameworks.hugging_face import OptgenArguments

    args = TrainingArguments("out")
    for written in ("name=lion", '{"model_or_params": 1}'):
        with pytest.raises(ValueError, match="which is given elsewhere: take it out"):
            OptgenArguments("adamw", written).cls_and_kwargs(args)


def test_hugging_face_trains_as_with_an_optimizer_made_in_code() -> None:
    from transformers import Trainer, TrainingArguments

    names = run("Hugging Face Trainer")
    model = Model(torch.float32)
    arguments = {"betas": (0.9, 0.95), "layer_decay": 0.9}
    made = optim.create_optimizer(model, "lion", lr=1e-3, weight_decay=0.1, **arguments)
    args = TrainingArguments("out", max_steps=8)
    Trainer(model=model, args=args, train_dataset=Data(), optimizers=(made, None)).train()

    assert type(names["trainer"].optimizer.optimizer) is optim.Lion
    assert distance_from_start(weights(names["trained"])) > 1e-3
    assert deviation(weights(names["trained"]), weights(model)) == 0


def parsed(*line: str) -> tuple[Any, dict[str, Any]]:
    """Return the model's optimizer and the factory's arguments for a command line."""
    from transformers import HfArgumentParser, TrainingArguments

    from optgen.frameworks.hugging_face import OptgenArguments

    parser = HfArgumentParser((TrainingArguments, OptgenArguments))
    args, ours = parser.parse_args_into_dataclasses(["--output_dir", "out", *line])
    factory, arguments = ours.cls_and_kwargs(args)
    return factory()(Model(torch.float32), **arguments), arguments


def test_a_command_line_names_an_optimizer() -> None:
    written = ("--optgen_args", "betas=(0.9, 0.95), layer_decay=0.9")
    optimizer, _ = parsed("--optgen", "lion", "--learning_rate", "1e-3", *written)
    assert type(optimizer) is optim.Lion
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.95)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0}

    others = ("--optgen_args", '{"others": ["adamw", {"lr": 3e-4}]}')
    optimizer, _ = parsed("--optgen", "muon", *others)
    assert optimizer.split.optimizers == ("Muon", "AdamW")


def test_arguments_named_after_adam_are_used_if_they_are_changed() -> None:
    assert "betas" not in parsed("--optgen", "adamw")[1]
    _, arguments = parsed("--optgen", "adamw", "--adam_beta2", "0.95", "--adam_epsilon", "1e-6")
    assert arguments["betas"] == (0.9, 0.95)
    assert arguments["eps"] == 1e-6
    with pytest.raises(TypeError, match="eps"):
        parsed("--optgen", "lion", "--adam_epsilon", "1e-6")


def test_averaged_weights_are_in_the_checkpoints_of_hugging_face() -> None:
    from safetensors.torch import load_file
    from transformers import Trainer, TrainingArguments

    from optgen.frameworks.hugging_face import ModeCallback

    model = run("Averaged weights")["trained"]
    resumed = Trainer(
        model=Model(torch.float32),
        args=TrainingArguments("again", max_steps=8, save_strategy="no"),
        train_dataset=Data(),
        optimizer_cls_and_kwargs=(optim.ScheduleFreeAdamW, {"lr": 1e-2}),
        callbacks=[ModeCallback()],
    )
    resumed.train(resume_from_checkpoint="out/checkpoint-4")
    (group,) = {g["train_mode"] for g in resumed.optimizer.param_groups}
    saved = load_file("out/checkpoint-8/model.safetensors")

    assert group is False
    assert all(torch.equal(saved[key], value) for key, value in model.state_dict().items())
    assert deviation(weights(resumed.model), weights(model)) < 1e-5
    plain = run_without_the_callback()
    assert deviation(weights(plain.model), weights(model)) > 1e-3
    plain.optimizer.eval()
    assert deviation(weights(plain.model), weights(model)) < 1e-5


def run_without_the_callback() -> Any:
    from transformers import Trainer, TrainingArguments

    trainer = Trainer(
        model=Model(torch.float32),
        args=TrainingArguments("plain", max_steps=8, save_strategy="no"),
        train_dataset=Data(),
        optimizer_cls_and_kwargs=(optim.ScheduleFreeAdamW, {"lr": 1e-2}),
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        ("optgen-adamw", "adamw", {"betas": (0.9, 0.95)}),
        ("optgen-momentum", "momentum", {}),
        ("optgen-nesterov", "sgd", {"momentum": 0.8}),
        ("optgen-rmsprop", "rmsprop", {"layer_decay": 0.5}),
        ("lookahead_optgen-adamw", "lookahead_adamw", {}),
    ],
)
def test_timm_makes_optimizers_that_train_as_its_own(
    ours: str, theirs: str, options: dict[str, Any]
) -> None:
    import timm.optim

    assert type(run("timm")["optimizer"]) is optim.Lion
    models = [Model(), Model()]
    for model, name in zip(models, (ours, theirs), strict=True):
        if "rmsprop" in name:
            options = {**options, "alpha": 0.9}
        optimizer = timm.optim.create_optimizer_v2(model, name, lr=LR, weight_decay=0.1, **options)
        for _ in range(7):
            optimizer.zero_grad()
            model(Data().inputs, Data().labels)["loss"].backward()
            optimizer.step()

    assert deviation(weights(models[0]), weights(models[1])) < 1e-6
    assert deviation(weights(models[0]), weights(Model())) > 1e-3


def test_timm_knows_all_optimizers_that_decay() -> None:
    import timm.optim

    from optgen.frameworks.timm import register

    names = register()
    assert len(names) > 50
    assert set(names) <= set(timm.optim.list_optimizers("optgen-*"))
    with pytest.raises(ValueError, match="rprop: timm gives every optimizer a weight decay"):
        register("lion", "rprop")
    with pytest.raises(ValueError, match="did you mean 'lion'"):
        register("lionn")


def engine_weights(rank: int, folder: str) -> list[Tensor]:
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.chdir(folder)
    return weights(run("DeepSpeed")["trained"])


def plugin_weights(rank: int, folder: str) -> tuple[list[Tensor], str]:
    """Return the weights after training with Accelerate's plugin, and the optimizer's class."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    import deepspeed
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # of an earlier test in this process
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.chdir(folder)
    write_files("DeepSpeed")
    names = run("Accelerate's DeepSpeed plugin")
    stepped = names["optimizer"].optimizer.optimizer
    return weights(names["trained"]), type(stepped).__name__


def test_deepspeed_trains_with_the_optimizer_of_its_file(tmp_path: Path) -> None:
    """Both processes see the same batches, so they train as one."""
    model = Model(torch.float32)
    optimizer = optim.Lion(model.parameters(), lr=1e-3, weight_decay=0.1)
    for batch in torch.utils.data.DataLoader(Data(), batch_size=BATCH):
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    for found in pair.run(engine_weights, str(tmp_path), limit=LIMIT):
        torch.testing.assert_close(found, weights(model), rtol=0, atol=1e-6)
        assert distance_from_start(found) > 1e-3


def test_accelerates_plugin_trains_with_the_optimizer_of_its_file(tmp_path: Path) -> None:
    for found, cls in pair.run(plugin_weights, str(tmp_path), limit=LIMIT):
        assert cls == "Lion"
        assert distance_from_start(found) > 1e-3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "the configuration names no optimizer: write"),
        ({"optimizer": {"params": {}}}, "the configuration names no optimizer: write"),
        ({"optimizer": {"type": "lionn"}}, "did you mean 'lion'"),
        ({"optimizer": {"type": "lion", "params": {"lr": "auto"}}}, 'lr is "auto": write its'),
    ],
)
def test_a_file_of_deepspeed_without_a_known_optimizer_is_refused(
    config: dict[str, Any], message: str
) -> None:
    from optgen.frameworks.deepspeed import take_optimizer

    with pytest.raises(ValueError, match=message):
        take_optimizer(config)


def job(**optimizer: Any) -> Any:
    """Return torchtitan's section [optimizer], of the page's file, with some changes."""
    from torchtitan.config import ConfigManager

    write_files("torchtitan")
    changes = [f"--optimizer.{key}={value}" for key, value in optimizer.items()]
    return ConfigManager().parse_args(["--job.config_file", "job.toml", *changes])


def test_torchtitan_makes_the_optimizer_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtitan.protocols import train_spec

    from optgen.frameworks import torchtitan

    monkeypatch.setattr(train_spec, "_extra_train_specs", {})
    config = job()
    run("torchtitan")
    spec = train_spec.get_train_spec(config.model.name)
    (optimizer,) = spec.build_optimizers_fn([Model()], config.optimizer, None)

    assert type(optimizer) is optim.Lion
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (1e-4, (0.9, 0.99), 0.1)
    with pytest.raises(ValueError, match="deepseek_v3 builds its optimizers by build_optimizers_w"):
        torchtitan.register("deepseek_v3")


def test_torchtitan_steps_in_the_backward_pass_and_by_lists() -> None:
    from optgen.frameworks.torchtitan import build_optimizers

    config = job(name="adafactor", implementation="foreach", arguments="maximize=True")
    (optimizer,) = build_optimizers([Model()], config.optimizer, None)
    assert type(optimizer) is optim.Adafactor  # its eps are two numbers
    assert optimizer.param_groups[0]["maximize"]
    assert optimizer.param_groups[0]["foreach"] is True

    config = job(name="adamw", arguments="")
    config.optimizer.early_step_in_backward = True
    model = Model()
    container = build_optimizers([model], config.optimizer, None)
    model(Data().inputs, Data().labels)["loss"].backward()
    assert len(list(container)) == len(list(model.parameters()))
    assert deviation(weights(model), weights(Model())) > 1e-6
    config.optimizer.offload = True
    with pytest.raises(ValueError, match="exclude each other"):
        build_optimizers([model], config.optimizer, None)


def test_every_section_is_run() -> None:
    titles = [text.split("\n")[0] for text in SECTIONS]
    assert titles == [
        "Hugging Face Trainer",
        "trl",
        "axolotl",
        "LightningCLI",
        "timm",
        "torchtitan",
        "DeepSpeed",
        "Accelerate's DeepSpeed plugin",
        "Averaged weights",
    ]
