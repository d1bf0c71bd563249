"""Test optgen.load: it returns a cached class, which pickles by the text of its spec."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from spec_texts import spec
from torch.overrides import TorchFunctionMode

import optgen
import optgen.jit
from optgen.runtime.cache import files
from optgen.spec import Spec, hyper, optimizer, state
from optgen.spec.errors import SpecError

ROOT = Path(__file__).parent.parent
RULE = '''from optgen.spec import hyper, optimizer, state


@optimizer(paper="https://arxiv.org/abs/0000.00000")
def Heavy(p, g, /, b=state("momentum_buffer"), *, lr=hyper(1e-2, ge=0), beta=hyper(0.9, ge=0)):
    """A heavy ball."""
    b = beta * b + g
    p = p - lr * b
'''


@optimizer(paper="https://arxiv.org/abs/0000.00000")
def Plain(p, g, /, c=state("count"), *, lr=hyper(1e-2, ge=0)):
    """Gradient descent that stores the last gradient, so that it has a state."""
    c = 0 * c + g
    p = p - lr * c


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(folder))
    monkeypatch.setattr("optgen.jit._loaded_classes", {})
    return folder


@pytest.fixture
def spec_path(tmp_path: Path) -> Path:
    """Return the path of a file with `RULE`."""
    path = tmp_path / "heavy.py"
    path.write_text(RULE)
    return path


def parameter_after_steps(cls: type[torch.optim.Optimizer], steps: int = 3) -> torch.Tensor:
    """Return a parameter of zeros after steps with gradients of one."""
    parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    instance = cls([parameter], lr=0.1)
    for _ in range(steps):
        parameter.grad = torch.ones_like(parameter)
        instance.step()
    return parameter.detach()


def test_load_accepts_a_file(spec_path: Path) -> None:
    cls = optgen.load(spec_path)

    assert cls.__name__ == "Heavy"
    assert issubclass(cls, optgen.GeneratedOptimizer)
    expected = torch.full((4,), -0.1 * (1 + 1.9 + 2.71), dtype=torch.float64)
    torch.testing.assert_close(parameter_after_steps(cls), expected)


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_every_lowering_runs(lowering: str, spec_path: Path) -> None:
    cls = optgen.load(str(spec_path))

    with optgen.use_lowering(lowering):
        found = parameter_after_steps(cls)

    torch.testing.assert_close(found, parameter_after_steps(cls))


def test_load_accepts_a_decorated_function() -> None:
    assert isinstance(Plain, Spec)
    cls = optgen.load(Plain)

    torch.testing.assert_close(
        parameter_after_steps(cls, 1), torch.full((4,), -0.1, dtype=torch.float64)
    )


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("name", ["adamw", "AdamW", "radam"])
def test_load_accepts_a_name_of_the_catalogue(name: str) -> None:
    import optgen.optim

    cls = optgen.load(name)

    published = getattr(optgen.optim, cls.__name__)
    assert cls.__name__.lower() == name.lower()
    torch.testing.assert_close(parameter_after_steps(cls), parameter_after_steps(published))


def test_load_refuses_what_is_no_spec() -> None:
    """A missing name, a plain function and a class are refused."""
    with pytest.raises(FileNotFoundError, match=r"name of the catalogue \(.*adam, .*: 'tigress'"):
        optgen.load("tigress")
    for wrong in (test_load_accepts_a_file, torch.optim.Adam, 3):
        with pytest.raises(TypeError, match="a spec file or a function decorated with @optimizer"):
            optgen.load(wrong)  # type: ignore[arg-type]


def test_a_loaded_class_loads_again(spec_path: Path) -> None:
    """A notebook cell `Mine = optgen.load(Mine)` may run twice."""
    cls = optgen.load(spec_path)

    assert optgen.load(cls) is cls  # type: ignore[arg-type]
    composed = optgen.compose(cls, optgen.modifiers.ema)
    assert optgen.load(composed) is composed  # type: ignore[arg-type]


def test_a_mistake_in_a_script_takes_four_lines(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = spec("p = p - lr * g ^ 2").replace("from ", "import optgen\nfrom ", 1)
    script.write_text(f"{text}\n\noptgen.load(Made)\n")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)

    shown = [
        line for line in run.stderr.splitlines() if "NumPy" not in line and "numpy" not in line
    ]
    assert run.returncode == 1
    assert len(shown) == 4, run.stderr
    assert shown[-1] == "  hint: a power is written with two stars: g**2"


def test_load_suggests_a_file_of_the_same_name(
    spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(spec_path.parent)

    with pytest.raises(FileNotFoundError, match=rf"did you mean the file '{spec_path.name}'\?"):
        optgen.load(spec_path.stem)


def test_one_text_is_one_class(spec_path: Path) -> None:
    """An unchanged text gives the loaded class again; a changed file gives another class."""
    cls = optgen.load(spec_path)

    assert optgen.load(spec_path) is cls
    spec_path.write_text(RULE.replace("A heavy ball", "A heavier ball"))
    assert optgen.load(spec_path) is not cls


def test_load_writes_the_texts_that_build_writes(spec_path: Path, tmp_path: Path) -> None:
    cls = optgen.load(spec_path)
    out = tmp_path / "out"
    subprocess.run(
        [sys.executable, "-m", "optgen", "build", str(spec_path), "--out", str(out)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )

    folder = Path(inspect.getfile(cls)).parent
    for path in sorted((out / "heavy").iterdir()):
        assert (folder / path.name).read_text() == path.read_text()


class NoAddition(TorchFunctionMode):
    """Raises an error at the addition of `p = p - lr * b`, in the middle of a step."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.add_ and "alpha" in kwargs:
            raise ValueError("no addition")
        return func(*args, **kwargs)


def test_source_and_tracebacks_show_the_generated_code(spec_path: Path) -> None:
    """getsource shows the class, and an error inside a step shows the generated line."""
    cls = optgen.load(spec_path)
    assert inspect.getsource(cls).startswith("class Heavy(")
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    instance = cls([parameter], lr=0.1)

    with optgen.use_lowering("forloop"), pytest.raises(ValueError) as caught, NoAddition():
        instance.step()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert any(f.filename.endswith("forloop.py") and "lr" in (f.line or "") for f in frames)


def test_a_class_unpickles_as_itself_in_its_process(spec_path: Path) -> None:
    cls = optgen.load(spec_path)

    assert pickle.loads(pickle.dumps(cls)) is cls


def test_a_class_and_an_optimizer_unpickle_in_another_process(
    spec_path: Path, tmp_path: Path
) -> None:
    """A class and an optimizer in training unpickle without the spec file, with an empty cache."""
    cls = optgen.load(spec_path)
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    instance = cls([parameter], lr=0.5)
    instance.step()
    (tmp_path / "pickled").write_bytes(pickle.dumps((cls, instance)))
    spec_path.unlink()
    code = """
import pickle, sys
cls, instance = pickle.load(open(sys.argv[1], "rb"))
assert type(instance) is cls, type(instance)
(parameter,) = instance.param_groups[0]["params"]
assert instance.state[parameter]["momentum_buffer"].tolist() == [1.0, 1.0]
instance.step()
print(cls.__name__, parameter.tolist())
"""

    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "pickled")],
        cwd=ROOT,
        env={**os.environ, "OPTGEN_CACHE_DIR": str(tmp_path / "other")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split()[0] == "Heavy"


def test_a_subclass_outside_a_module_does_not_pickle(spec_path: Path) -> None:
    """A loaded class pickles by its spec; pickle looks up its subclass in a module."""
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(type("Mine", (optgen.load(spec_path),), {}))


def test_warm_cache_reads_no_spec(spec_path: Path) -> None:
    """A second process imports the cached text and imports neither the reader nor SymPy."""
    code = (
        "import sys, optgen; optgen.load(sys.argv[1]); "
        "print([m for m in ('sympy', 'jinja2', 'optgen.spec.read_spec') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(spec_path)]
    first, second = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )

    assert "optgen.spec.read_spec" in first
    assert second.strip() == "[]"


def test_several_processes_fill_one_cache_at_once(spec_path: Path, cache: Path) -> None:
    """Four processes load one spec with an empty cache; no temporary file is left."""
    code = (
        "import os, sys, optgen, optgen.emit\n"
        "os.fork(), os.fork()\n"
        "optgen.load(sys.argv[1])\n"
        "print(flush=True)"
    )
    command = [sys.executable, "-c", code, str(spec_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert run.stdout == "\n" * 4
    assert not run.stderr
    assert len(list((cache / "specs").iterdir())) == 1


def test_a_class_trains_without_a_writable_cache(
    spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(spec_path / "below-a-file"))
    monkeypatch.setattr(files, "_warned_reasons", set())

    with pytest.warns(UserWarning, match="each process builds it again") as warned:
        assert parameter_after_steps(optgen.load(spec_path)).shape == (4,)
    assert len(warned) == 1


def test_a_class_computes_the_same_without_ruff(
    spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the formatter, the generated text has another layout only."""
    expected = parameter_after_steps(optgen.load(spec_path))
    monkeypatch.setattr("optgen.jit._loaded_classes", {})
    monkeypatch.setattr("optgen.emit.find_ruff", lambda: None)
    monkeypatch.setattr("optgen.jit._generator_digest", lambda: "without ruff")

    torch.testing.assert_close(parameter_after_steps(optgen.load(spec_path)), expected)


def test_the_cache_key_depends_on_the_formatter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of ruff, or none, may make another text of the same spec."""
    keys = set()
    for version in ("0.17.4", "0.17.5", ""):
        monkeypatch.setattr("optgen.jit._formatter_version", lambda text=version: text)
        keys.add(optgen.jit._generator_digest.__wrapped__())

    assert len(keys) == 3


def test_an_error_in_a_spec_names_its_place(tmp_path: Path, cache: Path) -> None:
    """The error leaves nothing in the cache."""
    path = tmp_path / "bad.py"
    path.write_text(RULE.replace("p = p - lr * b", "p = p - lr * c"))

    with pytest.raises(SpecError, match=r"unknown name `c`") as caught:
        optgen.load(path)
    assert str(caught.value).startswith(f"{path}:8:18: ")
    path.write_text(RULE + RULE.replace("Heavy", "Light"))
    with pytest.raises(SpecError, match="second spec"):
        optgen.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not Python"):
        optgen.load(path)
    with pytest.raises(FileNotFoundError):
        optgen.load(tmp_path / "absent.py")
    assert not (cache / "specs").exists()
