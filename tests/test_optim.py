"""Test the mirror of torch.optim: names, modules, torch's own objects, and missing names."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch.optim
from setuptools.config.pyprojecttoml import read_configuration

import optgen.optim

OWN = {"Optimizer", "ChainedOptimizer", "SAM"}
CLASSES = [name for name in optgen.optim.__all__ if name[0].isupper() and name not in OWN]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_in_the_module_where_torch_has_it(name: str) -> None:
    """The class pickles by its module, which has torch's name."""
    ours, theirs = getattr(optgen.optim, name), getattr(torch.optim, name)

    assert ours.__module__ == theirs.__module__.replace("torch.", "optgen.")
    assert getattr(importlib.import_module(ours.__module__), name) is ours
    assert pickle.loads(pickle.dumps(ours)) is ours
    assert issubclass(ours, torch.optim.Optimizer)


def test_adamw_is_an_adam() -> None:
    assert issubclass(optgen.optim.AdamW, optgen.optim.Adam)


def test_some_objects_are_torchs_own() -> None:
    assert optgen.optim.Optimizer is torch.optim.Optimizer
    for name in ("update_bn", "get_ema_avg_fn", "get_swa_avg_fn"):
        assert getattr(optgen.optim.swa_utils, name) is getattr(torch.optim.swa_utils, name)


def test_every_module_of_torch_exists_with_its_public_names() -> None:
    """Imports such as `from torch.optim.adam import Adam, adam` work with optgen.optim, too."""
    for path in Path(torch.optim.__file__).parent.glob("*[!_].py"):
        theirs = importlib.import_module(f"torch.optim.{path.stem}")
        if public := getattr(theirs, "__all__", ()):
            ours = importlib.import_module(f"optgen.optim.{path.stem}")
            assert set(public) <= set(ours.__all__)
            assert all(hasattr(ours, name) for name in public)


def test_a_name_that_optgen_lacks_points_to_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later torch may have a class that optgen lacks; the error says to use torch's."""
    monkeypatch.setattr(torch.optim, "__all__", [*torch.optim.__all__, "Newest"])
    missing = set(torch.optim.__all__) - set(optgen.optim.__all__)

    assert "Newest" in missing
    for name in missing:
        with pytest.raises(AttributeError, match=f"torch.optim.{name} works beside it"):
            getattr(optgen.optim, name)


def test_a_name_that_torch_lacks_too_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Adamm': did you mean `Adam`"):
        optgen.optim.Adamm  # noqa: B018


def test_a_scheduler_changes_the_learning_rate() -> None:
    optimizer = optgen.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    scheduler = optgen.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()

    assert optimizer.param_groups[0]["lr"] == 0.5


def test_dir_shows_the_public_names() -> None:
    """Every name of `dir` exists."""
    names = [name for name in dir(optgen) if not name.startswith("__")]
    assert "__version__" in dir(optgen)

    assert names == sorted(optgen.__all__)
    assert all(hasattr(optgen, name) for name in names)


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("name", ["optim.AdamW", "keyed.KeyedOptimizer", "spec.hyper"])
def test_a_subpackage_needs_no_import_of_its_own(name: str) -> None:
    script = f"import optgen; print(optgen.{name}.__name__)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert run.stdout == f"{name.rpartition('.')[2]}\n"


def test_the_version_is_that_of_the_package() -> None:
    """The package holds the version, and the build reads it there."""
    root = Path(__file__).parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())
    dynamic = read_configuration(root / "pyproject.toml")["project"]["version"]

    assert "version" not in project["project"]
    assert dynamic == optgen.__version__
