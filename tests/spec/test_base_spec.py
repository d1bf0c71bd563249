"""Test that the base of a spec with `base=` is read, or that the error says why it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Golden

from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_base, read_spec

SPECS = Path(__file__).parents[2] / "specs"
DERIVED = '''from optgen.spec import hyper, optimizer


@optimizer(paper="https://arxiv.org/abs/0000.00000", base="Adam")
def Slow(p, g, t, /, *, lr=hyper(1e-5, ge=0)):
    """Adam with a small default."""
'''


def test_read_base_returns_the_algorithm_of_the_base(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text(DERIVED)
    (algorithm,) = read_spec(path)

    base = read_base(algorithm, SPECS)

    assert base is not None
    assert base.name == "Adam"
    assert read_base(base, SPECS) is None


def test_a_default_that_the_base_does_not_allow_is_refused(tmp_path: Path) -> None:
    text = DERIVED.replace("hyper, optimizer", "flag, optimizer").replace('"Adam"', '"SGD"')
    (tmp_path / "slow.py").write_text(text.replace("lr=hyper(1e-5, ge=0)", "nesterov=flag(True)"))
    (algorithm,) = read_spec(tmp_path / "slow.py")

    with pytest.raises(SpecError, match="violate this `require`: Nesterov momentum requires"):
        read_base(algorithm, SPECS)


FAULTS = {
    "unknown": ('base="Adam"', 'base="Adamm"'),
    "derived-itself": ('base="Adam"', 'base="AdamW"'),
    "no-such-hyperparameter": ("lr=hyper", "rate=hyper"),
    "keywords-leave-out": ('base="Adam"', 'base="Adam", keywords=("lr", "*")'),
    "unknown-keyword": ('base="Adam"', 'base="Adam", keywords=("lr", "*", "beta1")'),
    "another-group-order": (
        'base="Adam"',
        'base="Adam", group=("weight_decay", "lr", "betas", "eps", "amsgrad", '
        '"decoupled_weight_decay")',
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_errors(
    fault: str, tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slow.py").write_text(DERIVED.replace(*FAULTS[fault]))
    (algorithm,) = read_spec("slow.py")

    with pytest.raises(SpecError) as caught:
        read_base(algorithm, SPECS)
    golden.check(str(caught.value))
