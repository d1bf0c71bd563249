"""Test unusual files and texts: each is read as Python reads it, or refused with a hint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spec_texts import read, spec

import optgen
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec
from optgen.spec.source import MAX_FILE_BYTES

CONTROL_CHARACTERS = ["\0", "\x01", "\x07", "\x0b", "\x1b", "\x1f", "\x7f", "\x85", "\x9f"]
BIDI = ["\u061c", "\u200e", "\u200f", "\u202a", "\u202e", "\u2066", "\u2069"]
LINE_SEPARATORS = ["\u2028", "\u2029"]
SURROGATES = ["\ud800", "\udfff"]
RULE = spec("p = p - lr * (g", "    + p)")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache folder of its own."""
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path / "cache"))


def error_of(function: Callable[[Any], Any], argument: Any) -> SpecError:
    """Return the error of a call, and check that it has a hint and is printable."""
    with pytest.raises(SpecError) as raised:
        function(argument)
    assert raised.value.hint
    text = str(raised.value)
    assert text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable()
    return raised.value


@pytest.mark.parametrize(
    "character", [*CONTROL_CHARACTERS, *BIDI, *LINE_SEPARATORS, *SURROGATES], ids=ascii
)
def test_a_character_that_no_spec_may_hold_is_refused(character: str) -> None:
    """The character is refused anywhere in the source, and as an escape in any string."""
    for text in (f"# {character}\n{RULE}", RULE.replace("Made up", f"Made {character} up")):
        error_of(optgen.load, Spec("Made", text, "made.py", 1))
        error = error_of(read, text)
        assert f"U+{ord(character):04X}" in error.message
        assert error.source.split("\n")[error.place.line - 1][error.place.column - 1] == character

    escaped = f"\\u{ord(character):04x}"
    for text in (
        spec(hypers=f'lr=hyper(0.1, about="a{escaped}b")'),
        spec(hypers=f'lr=hyper(0.1, ge=0, error="a{escaped}b")'),
        spec(f'require(lr > 0, "a{escaped}b")', "p = p - lr * g"),
        spec(decorator=f'@optimizer(sparse_hint="a{escaped}b")'),
        spec(doc=f'"""Made{escaped} up."""'),
        spec(before=f'NAME = "{escaped}"'),
    ):
        assert f"U+{ord(character):04X}" in error_of(read, text).message


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["unix", "windows", "old-mac"])
def test_line_ends_may_be_any_that_python_accepts(end: str) -> None:
    """RULE has a line end inside an expression; the rule's quote is one line."""
    text = RULE.replace("\n", end)
    algorithm = read(text)

    assert algorithm == read(RULE)
    assert algorithm.rule[0].quote == ("p = p - lr * (g + p)",)
    assert error_of(read, text.replace("+ p", "+ q")).place.line == 7


def test_a_form_feed_is_a_blank() -> None:
    algorithm = read(spec("p = p -\flr * g\f"))

    assert algorithm.rule[0].quote == ("p = p - lr * g",)
    error_of(read, spec(doc='"""Made \f up."""'))


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_bytes(b"\xef\xbb\xbf" + RULE.replace("\n", "\r\n").encode())

    assert read_spec(path)[0].name == "Made"
    assert optgen.load(path).__name__ == "Made"


FILES = {
    "empty": b"",
    "blank": b"\n\n  \n",
    "utf-16": RULE.encode("utf-16"),
    "latin-1": RULE.replace("Made up", "Gemäß").encode("latin-1"),
    "declared latin-1": b"# coding: latin-1\n" + RULE.replace("Made up", "Gemäß").encode("latin-1"),
    "binary": bytes(range(256)),
    "zeros": bytes(1000),
    "too large": b"# " + b"a" * MAX_FILE_BYTES + b"\n" + RULE.encode(),
    "tabs and blanks": RULE.replace("    p", "\tp").encode(),
    "indented too little": RULE.replace("    p", "  p").encode(),
    "indented too deeply": b"".join(b" " * n + b"if t:\n" for n in range(150)),
    "parentheses": spec(f"p = p - lr * {'(' * 1000}g{')' * 1000}").encode(),
    "minuses": spec(f"p = p - lr * {'-' * 1000}g").encode(),
    "more minuses": spec(f"p = p - lr * {'-' * 100000}g").encode(),
    "many terms": spec(f"p = p - lr * ({' + '.join(['g'] * 1000)})").encode(),
    "many statements": spec(*["p = p - lr * g"] * 10_000).encode(),
    "a helper of helpers": spec(
        "p = p - lr * f30(g)",
        before="def f0(x):\n    return x + x\n\n\n"
        + "\n\n\n".join(
            f"def f{n}(x):\n    return f{n - 1}(x) + f{n - 1}(x)" for n in range(1, 31)
        ),
    ).encode(),
    "nested branches": spec(
        *(f"{'    ' * n}if t > {n}:" for n in range(95)), " " * 380 + "p = g"
    ).encode(),
    "an unfinished string": RULE.encode() + b'"""',
    "a lone backslash": RULE.encode() + b"\\",
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_spec_is_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_bytes(FILES[case])

    for function in (read_spec, optgen.load):
        error = error_of(function, path)
        assert error.place.file == str(path)
        assert len(str(error)) < 2000


def test_a_path_that_is_no_regular_file_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "device.py").symlink_to("/dev/zero")
    (tmp_path / "nowhere.py").symlink_to(tmp_path / "absent")

    for name in ("folder.py", "pipe.py", "device.py", "nowhere.py"):
        for function in (read_spec, optgen.load):
            with pytest.raises(OSError, match=name):
                function(tmp_path / name)


def test_a_file_behind_a_link_is_read(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text(RULE)
    (tmp_path / "made.py").symlink_to(tmp_path / "other.txt")

    assert read_spec(tmp_path / "made.py")[0].module == "made"


@pytest.mark.parametrize("name", ["../adamw", "../specs/adamw", "a\0b", "", ".", "x\n"])
def test_a_name_of_the_catalogue_may_not_be_a_path(name: str) -> None:
    with pytest.raises((FileNotFoundError, ValueError)):
        optgen.load(name)


@pytest.mark.parametrize("name", ["x\nimport os", "<lambda>", "a-b", "", "é"])
def test_a_spec_made_by_hand_needs_a_name(name: str) -> None:
    error_of(read_spec, Spec(name, RULE, "made.py", 1))
