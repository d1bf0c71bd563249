"""Measure the memory layout of torch's objects for the C++ reader (see tensor_objects.h).

torch has no C interface that leads from a Python tensor to its gradient. So some offsets are
measured here: the 8-byte word of a Python tensor that holds the address of its implementation
(TensorImpl), and the words of an implementation that hold its dispatch keys, its dtype and its
sizes. A word is found by a comparison of tensors that differ in one known property. Two C++ symbols
are used, and checked against `.grad` and `._version`. All other functions belong to the stable C
interfaces of torch (`aoti_torch_*`) and Python.

The measurement reads memory at assumed places, and C++ symbols are not guaranteed. On a torch with
another object layout it might crash the process.
"""

import ctypes
import sys
from ctypes import c_int, c_int64, c_uint64, c_void_p
from functools import reduce
from operator import and_, invert
from pathlib import Path
from struct import unpack

import torch
from torch import Tensor

from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES
from optgen.runtime.torch_private import dtensor_spec, local_tensor

_INLINE_DIMENSIONS = 5  # an implementation stores the sizes of up to 5 dimensions itself
# The size of an implementation in words of 8 bytes, in the versions of torch that were tried.
_IMPLEMENTATION_WORDS = 22 if torch.__version__ >= "2.13" else 23
_STORAGE_WORDS = 9  # of a storage; every version that was tried has more
_PYTHON_FUNCTIONS = {
    "list_size": "PyList_Size",
    "list_item": "PyList_GetItem",
    "dict_next": "PyDict_Next",
    "compare": "PyUnicode_CompareWithASCIIString",
    "release_lock": "PyEval_SaveThread",
    "take_lock": "PyEval_RestoreThread",
}
_TORCH_FUNCTIONS = {
    "address": "aoti_torch_get_data_ptr",
    "sizes": "aoti_torch_get_sizes",
    "strides": "aoti_torch_get_strides",
    "device_index": "aoti_torch_get_device_index",
    "new_handle": "aoti_torch_new_tensor_handle",
    "delete_handle": "aoti_torch_delete_tensor_object",
}
_GRAD_SYMBOL = "_ZNK3c1010TensorImpl4gradEv"  # const Tensor& c10::TensorImpl::grad() const
# void torch::autograd::impl::bump_version(const Tensor&)
_BUMP_VERSION_SYMBOL = "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE"


class Layout(ctypes.Structure):
    """`Layout` of tensor_objects.h, field by field."""

    _fields_ = [
        ("implementation", c_int64),
        ("dispatch_keys", c_int64),
        ("traits", c_int64),
        ("element_count", c_int64),
        ("shape", c_int64),
        ("storage", c_int64),
        ("storage_begin", c_int64),
        ("storage_bytes", c_int64),
        ("plain_keys", c_uint64),
        ("contiguity_mask", c_uint64),
        ("contiguous_bits", c_uint64),
        ("stream_dtypes", c_uint64),
        ("scalar_dtypes", c_uint64),
        ("tensor_type", c_void_p),
        ("parameter_type", c_void_p),
        ("dict_type", c_void_p),
        ("key_type", c_void_p),
        ("dtensor_type", c_void_p),
        ("local", c_int64),
        ("spec", c_int64),
        ("object", c_int64),
        ("undefined_tensor", c_void_p),
        ("grad", c_void_p),
        ("bump_version", c_void_p),
        *((name, c_void_p) for name in (*_TORCH_FUNCTIONS, *_PYTHON_FUNCTIONS)),
    ]


class UnknownLayoutError(Exception):
    """Error for a torch or Python with an object layout that the reader does not know."""


def measure_layout() -> Layout:
    """Measure the layout of this process's objects; raise an `UnknownLayoutError` if unknown."""
    dtype_bits = sum(1 << code for code in DTYPE_CODES.values())
    layout = Layout(
        tensor_type=id(Tensor),
        parameter_type=id(torch.nn.Parameter),
        dict_type=id(dict),
        key_type=id(str),
        stream_dtypes=dtype_bits,
        scalar_dtypes=dtype_bits,
    )
    _link(layout)
    tensor = torch.empty(3, dtype=torch.float32)
    param = torch.nn.Parameter(torch.empty(2, 2, dtype=torch.float64))
    layout.implementation = _implementation_offset(tensor, param)
    _find_keys(layout, tensor, param)
    _find_traits(layout)
    _find_element_count(layout)
    _find_shape(layout)
    _find_storage(layout)
    _find_undefined_gradient(layout)
    _check_symbols(layout)
    return layout


def _link(layout: Layout) -> None:
    """Store the addresses of the functions of torch and Python that the reader calls."""
    folder = Path(torch.__file__).parent / "lib"
    suffix = "dylib" if sys.platform == "darwin" else "so"
    libraries = [
        (ctypes.CDLL(str(folder / f"libc10.{suffix}")), {"grad": _GRAD_SYMBOL}),
        (
            ctypes.CDLL(str(folder / f"libtorch_cpu.{suffix}")),
            {"bump_version": _BUMP_VERSION_SYMBOL} | _TORCH_FUNCTIONS,
        ),
        (ctypes.pythonapi, _PYTHON_FUNCTIONS),
    ]
    for library, symbols in libraries:
        for name, symbol in symbols.items():
            setattr(layout, name, ctypes.cast(getattr(library, symbol), c_void_p))


def _words(address: int, count: int) -> list[int]:
    return list(unpack(f"{count}Q", ctypes.string_at(address, 8 * count)))


def _implementation_offset(*tensors: Tensor) -> int:
    """Return the offset of the implementation's address in a Python tensor."""
    size = object.__basicsize__
    if any(_words(id(tensor), 2)[1] != id(type(tensor)) for tensor in tensors):
        raise UnknownLayoutError("the second word of an object does not hold its type")
    matches = [
        [word == tensor._cdata for word in _words(id(tensor) + size, 2)] for tensor in tensors
    ]
    candidates = [index for index, same in enumerate(zip(*matches, strict=True)) if all(same)]
    return size + 8 * _only(candidates, "the implementation")


def _only(candidates: list[int], what: str) -> int:
    """Return the only candidate; raise an error that names `what` if there is none or several."""
    if len(candidates) != 1:
        raise UnknownLayoutError(f"found {len(candidates)} places for {what} of a tensor, not one")
    return candidates[0]


def _implementation_words(tensor: Tensor) -> list[int]:
    return _words(tensor._cdata, _IMPLEMENTATION_WORDS)


def _find_keys(layout: Layout, tensor: Tensor, param: Tensor) -> None:
    """Find the word of the dispatch keys.

    Two plain tensors have equal keys. A negated view has one key that its base does not have, so
    their words differ in one bit.
    """
    samples = [tensor, param, *(torch.empty(2, dtype=dtype) for dtype in DTYPE_CODES)]
    plain = _common_words(samples)
    negated = _common_words([torch._neg_view(tensor), torch._neg_view(param.detach())])
    candidates = [
        i for i, word in plain.items() if word and (word ^ negated.get(i, word)).bit_count() == 1
    ]
    index = _only(candidates, "the keys")
    if _implementation_words(torch.empty(3, layout=torch.sparse_coo))[index] == plain[index]:
        raise UnknownLayoutError("the dispatch keys of a sparse tensor are those of a dense one")
    layout.dispatch_keys, layout.plain_keys = 8 * index, plain[index]


def _values_by_word(tensors: list[Tensor]) -> list[set[int]]:
    """Return, for each word of an implementation, the values that it has in these tensors."""
    return list(map(set, zip(*map(_implementation_words, tensors), strict=True)))


def _common_words(tensors: list[Tensor]) -> dict[int, int]:
    """Return the words that are equal in the implementations of all these tensors, by index."""
    return {i: min(values) for i, values in enumerate(_values_by_word(tensors)) if len(values) == 1}


def _constant_bits(words: set[int]) -> tuple[int, int]:
    """Return the bits that are 1 in all these words, and the bits that are 0 in all."""
    return reduce(and_, words), reduce(and_, map(invert, words))


def _find_traits(layout: Layout) -> None:
    """Find the word that holds the dtype's number and the bit of contiguity.

    Other bits of that word may be padding with any value.
    """
    words_by_dtype = {
        dtype: _implementation_words(torch.empty(9, 7, dtype=dtype)) for dtype in DTYPE_CODES
    }
    candidates = [
        i
        for i in range(_IMPLEMENTATION_WORDS)
        if all(words_by_dtype[dtype][i] & 0xFFFF == code for dtype, code in DTYPE_CODES.items())
    ]
    index = _only(candidates, "the dtype")
    tensors = [torch.empty(n, 7, dtype=dtype) for n in range(2, 10) for dtype in DTYPE_CODES]
    ones_if_contiguous, zeros_if_contiguous = _constant_bits(_values_by_word(tensors)[index])
    ones_if_transposed, zeros_if_transposed = _constant_bits(
        _values_by_word([t.t() for t in tensors])[index]
    )
    # The bits that are equal in all contiguous tensors, and inverted in all transposed ones.
    different = ones_if_contiguous & zeros_if_transposed | zeros_if_contiguous & ones_if_transposed
    layout.contiguity_mask = different & ~0xFFFF
    if not layout.contiguity_mask:
        raise UnknownLayoutError("no bit tells whether a tensor is contiguous")
    layout.traits, layout.contiguous_bits = 8 * index, ones_if_contiguous & layout.contiguity_mask


def _find_element_count(layout: Layout) -> None:
    """Find the word of the number of elements."""
    sizes = [(5, 7), (11, 13), (), (0, 3)]
    samples = [_implementation_words(tensor) for tensor in map(torch.empty, sizes)]
    counts = [35, 143, 1, 0]
    candidates = [
        i for i in range(_IMPLEMENTATION_WORDS) if [words[i] for words in samples] == counts
    ]
    layout.element_count = 8 * _only(candidates, "the number of elements")


def _find_shape(layout: Layout) -> None:
    """Find the word of the number of dimensions; inline sizes follow it."""
    samples = [torch.empty(size) for size in [(), (7,), (5, 11), (4, 2, 3, 6, 5), (2,) * 6]]
    expected = [(t.dim(), *(t.shape if t.dim() <= _INLINE_DIMENSIONS else ())) for t in samples]
    words = list(map(_implementation_words, samples))
    candidates = [
        i
        for i in range(_IMPLEMENTATION_WORDS)
        if all(tuple(w[i : i + len(e)]) == e for w, e in zip(words, expected, strict=True))
    ]
    layout.shape = 8 * _only(candidates, "the shape")


def _find_storage(layout: Layout) -> None:
    """Find the word of a tensor's storage, and in a storage the words of its address and size.

    A storage of torch's own memory holds its address twice. One of foreign memory holds it once.
    """
    memories = [bytearray(40), bytearray(72)]
    storages = [
        torch.frombuffer(memory, dtype=torch.uint8).untyped_storage() for memory in memories
    ]
    samples = [(torch.empty(0).set_(storage), storage) for storage in storages]
    tensor_words = [(_implementation_words(tensor), s._cdata) for tensor, s in samples]
    storage_words = [_words(storage._cdata, _STORAGE_WORDS) for storage in storages]
    addresses = [(words, s.data_ptr()) for words, s in zip(storage_words, storages, strict=True)]
    sizes = [(words, s.nbytes()) for words, s in zip(storage_words, storages, strict=True)]
    layout.storage = 8 * _common_place(tensor_words, "the storage")
    layout.storage_begin = 8 * _common_place(addresses, "the storage's address")
    layout.storage_bytes = 8 * _common_place(sizes, "the storage's size")


def _common_place(samples: list[tuple[list[int], int]], what: str) -> int:
    """Return the only index at which every list of words holds its value."""
    count = min(len(words) for words, _ in samples)
    return _only(
        [i for i in range(count) if all(words[i] == value for words, value in samples)], what
    )


def _find_undefined_gradient(layout: Layout) -> None:
    """Find the TensorImpl that stands for a gradient of None; check the C++ symbol of gradients."""
    grad = ctypes.CFUNCTYPE(c_void_p, c_void_p)(layout.grad)
    params = [torch.nn.Parameter(torch.empty(n)) for n in (2, 3)]
    layout.undefined_tensor = _words(grad(params[0]._cdata), 1)[0]
    if _words(grad(params[1]._cdata), 1)[0] != layout.undefined_tensor:
        raise UnknownLayoutError("undefined gradients have no common implementation")
    for param in params:
        param.grad = torch.empty_like(param)
        if _words(grad(param._cdata), 1)[0] != param.grad._cdata:
            raise UnknownLayoutError("the C++ symbol returns another gradient than `.grad`")


def _check_symbols(layout: Layout) -> None:
    """Check the symbols for addresses and versions against `data_ptr` and `_version`."""
    param = torch.nn.Parameter(torch.empty(2))
    handle = c_void_p(id(param) + layout.implementation)
    address = c_void_p()
    prototype = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)
    prototype(layout.address)(handle, ctypes.addressof(address))
    if address.value != param.data_ptr():
        raise UnknownLayoutError("torch's C interface returns another address than `data_ptr`")
    version = param._version
    ctypes.CFUNCTYPE(None, c_void_p)(layout.bump_version)(handle)
    if param._version != version + 1:
        raise UnknownLayoutError("the C++ symbol does not advance a parameter's `_version`")


def plain_keys_on(layout: Layout, device: torch.device) -> int:
    """Return the dispatch keys of a device's tensors that are dense memory and nothing else."""
    index: int = layout.dispatch_keys // 8
    tensor = torch.empty(2, device=device)
    samples = tensor, torch.nn.Parameter(tensor.clone()), torch._neg_view(tensor)
    plain, of_parameter, negated = (_implementation_words(each)[index] for each in samples)
    if plain != of_parameter or (plain ^ negated).bit_count() != 1:
        raise UnknownLayoutError(f"plain tensors on {device} have no common dispatch keys")
    return plain


def with_dtensor_fields(layout: Layout, dtensor: Tensor) -> Layout:
    """Return a layout that also has the class of a DTensor, and the slots of its fields.

    The fields are its local tensor and its spec. The layout also gets the word of an implementation
    that holds the address of its Python object. The given layout stays as it is: another thread may
    be reading tensors with it.
    """
    words = _words(id(dtensor), type(dtensor).__basicsize__ // 8)
    fields = {"local": local_tensor(dtensor), "spec": dtensor_spec(dtensor)}
    slots = {
        name: 8 * _only([i for i, word in enumerate(words) if word == id(value)], f"the {name}")
        for name, value in fields.items()
    }
    samples = [(_implementation_words(tensor), id(tensor)) for tensor in (dtensor, fields["local"])]
    result = Layout.from_buffer_copy(layout)
    result.object = 8 * _common_place(samples, "the Python object")
    result.local, result.spec = slots["local"], slots["spec"]
    result.dtensor_type = id(type(dtensor))
    return result
