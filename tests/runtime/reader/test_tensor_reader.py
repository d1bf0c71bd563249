"""Test the C++ reader of tensors: steps without it, and memory layouts that it refuses."""

import ctypes
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from optgen.optim import SGD, Adam
from optgen.runtime.fused_cpu import kernel_loader
from optgen.runtime.reader import object_layout, tensor_reader, trusted_torch
from optgen.runtime.reader.object_layout import UnknownLayoutError, measure_layout
from optgen.runtime.reader.tensor_reader import reader
from optgen.runtime.toolchain import library_cache

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def forget_reader() -> Iterator[None]:
    """Clear the cached reader before and after the test."""
    reader.cache_clear()
    yield
    reader.cache_clear()


def switch_reader_off(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("OPTGEN_TENSOR_READER", "0")


def change_torch_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "__version__", "2.130.0")
    patch.setattr(trusted_torch, "passes", lambda source: False)


def change_python(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "implementation", SimpleNamespace(name="pypy"))


def disable_gil(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)


def hide_a_symbol(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(object_layout, "_GRAD_SYMBOL", "no_such_symbol")


def hide_torchs_library(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "__file__", "/nowhere/torch/__init__.py")


def change_the_layout_of_requests(patch: pytest.MonkeyPatch) -> None:
    fields = [*tensor_reader.Request._fields_, ("more", ctypes.c_int64)]
    larger = type("Request", (ctypes.Structure,), {"_fields_": fields})
    patch.setattr(tensor_reader, "Request", larger)


def remove_the_compiler(patch: pytest.MonkeyPatch) -> None:
    def fail(name: str, source: str) -> None:
        raise library_cache.NoCompilerError

    patch.setattr(library_cache, "library", fail)


def raise_an_unforeseen_error(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tensor_reader, "measure_layout", lambda: {}["unforeseen"])


OBSTACLES: list[Patch] = [
    switch_reader_off,
    change_torch_version,
    change_python,
    disable_gil,
    hide_a_symbol,
    hide_torchs_library,
    change_the_layout_of_requests,
    remove_the_compiler,
    raise_an_unforeseen_error,
]


@pytest.mark.parametrize("obstacle", OBSTACLES, ids=lambda obstacle: obstacle.__name__)
def test_without_a_reader_steps_are_gathered(
    obstacle: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = SGD([param], lr=0.5)
    assert not isinstance(kernel_loader.kernel_or_reason(SGD), str)
    assert reader() is not None
    reader.cache_clear()
    obstacle(monkeypatch)

    optimizer.step()
    optimizer.step()

    assert reader() is None
    assert param.tolist() == [0.0] * 3
    assert optimizer._context.cached_step is None


def test_nothing_is_measured_on_a_torch_that_fails_its_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Measuring an unknown layout could crash the process."""
    change_torch_version(monkeypatch)
    monkeypatch.setattr(tensor_reader, "measure_layout", lambda: pytest.fail("measure_layout"))
    assert reader() is None


ReadWords = Callable[[int, int], list[int]]


def misread_type(read_words: ReadWords) -> ReadWords:
    return lambda address, count: [0] * count if count == 2 else read_words(address, count)


def misread_implementation(read_words: ReadWords) -> ReadWords:
    def read(address: int, count: int) -> list[int]:
        found = read_words(address, count)
        return found if count != 2 or found[1] in TYPES else [1, 2]

    return read


def misread_keys(read_words: ReadWords) -> ReadWords:
    return lambda address, count: [1] * count if count > 2 else read_words(address, count)


def misread_gradient(read_words: ReadWords) -> ReadWords:
    return lambda address, count: [address] if count == 1 else read_words(address, count)


TYPES = (id(torch.Tensor), id(torch.nn.Parameter))
MISREADS = [
    (misread_type, "second word"),
    (misread_implementation, "found 0 places for the implementation of a tensor"),
    (misread_keys, "found 0 places for the keys of a tensor"),
    (misread_gradient, "undefined gradients have no common implementation"),
]


@pytest.mark.parametrize(("misread", "message"), MISREADS, ids=lambda x: getattr(x, "__name__", ""))
def test_an_unexpected_memory_layout_gives_no_reader(
    misread: Callable[[ReadWords], ReadWords], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_layout, "_words", misread(object_layout._words))
    with pytest.raises(UnknownLayoutError, match=message):
        measure_layout()
    assert reader() is None


@pytest.mark.parametrize("name", ["grad", "address", "bump_version"])
def test_a_function_of_torch_that_does_something_else_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, function_type = object_layout._link, ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    # This function returns the same address for every tensor, and changes no tensor.
    other_function = function_type(lambda tensor: REFERENCE_ADDRESS)

    def link_another(layout: object_layout.Layout) -> None:
        link(layout)
        setattr(layout, name, ctypes.cast(other_function, ctypes.c_void_p))

    monkeypatch.setattr(object_layout, "_link", link_another)
    with pytest.raises(UnknownLayoutError, match=r"gradient|interface|version"):
        measure_layout()


_tensor = torch.zeros(3)
_reference = ctypes.c_uint64(_tensor._cdata)  # as an at::Tensor: its implementation's address
REFERENCE_ADDRESS = ctypes.addressof(_reference)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_there_is_a_reader_under_any_default_dtype(dtype: torch.dtype) -> None:
    old_dtype = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert reader() is not None
    finally:
        torch.set_default_dtype(old_dtype)


def test_there_is_a_reader_under_any_default_device() -> None:
    """The layout is that of CPU tensors, from which the reader derives those of other devices."""
    with torch.device("meta"):
        layout = tensor_reader.Reader().layout

    assert layout.plain_keys == measure_layout().plain_keys


def test_the_keys_of_plain_tensors_depend_on_the_device() -> None:
    layout = measure_layout()

    assert object_layout.plain_keys_on(layout, torch.device("cpu")) == layout.plain_keys
    assert object_layout.plain_keys_on(layout, torch.device("meta")) != layout.plain_keys


def test_old_bytes_in_memory_do_not_change_the_layout() -> None:
    """Padding keeps old bytes, and counters may be equal by chance."""
    tensors, layouts = [], set()
    for size in range(300):
        tensors += [torch.zeros(size % 37, dtype=torch.float64).requires_grad_() for _ in range(3)]
        del tensors[:: 2 + size % 5]
        layouts.add(bytes(measure_layout()))
    assert len(layouts) == 1


def test_a_busy_cached_step_refuses_a_second_call() -> None:
    """Two threads would share the scratch memory of the cached step."""
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = Adam([param])
    optimizer.step()
    cached = optimizer._context.cached_step
    assert cached is not None

    with cached._busy:
        assert not cached.run(optimizer)
    assert cached.run(optimizer)
