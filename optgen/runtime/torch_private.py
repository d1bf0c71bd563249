"""Private names of torch that the runtime uses, in one file, because a new torch may change them.

Among them is the pool of torch's own threads, which is not in torch's interface: `thread_pool`.

Other files use two kinds of private names directly: `torch._foreach_*`, and private attributes of
tensors and optimizers.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from ctypes import c_int, c_void_p
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch._C._dynamo import eval_frame as _eval_frame
from torch.autograd import forward_ad as _forward_ad
from torch.optim import optimizer as _torch_optimizer
from torch.utils import _foreach_utils

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

compiling: Callable[[], bool] = torch.compiler.is_compiling
_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled
set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled
is_contiguous = torch._C.TensorBase.is_contiguous
is_neg = torch._C.TensorBase.is_neg
is_functorch_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
is_inference = torch._C.TensorBase.is_inference
storage_offset = torch._C.TensorBase.storage_offset
untyped_storage = torch._C.TensorBase.untyped_storage
data_ptr = torch._C.TensorBase.data_ptr
numel = torch._C.TensorBase.numel
item = torch._C.TensorBase.item
call_ignoring_overrides: Callable[..., Any] = torch._C._disabled_torch_function_impl
"""Call a function of torch as if the classes of its tensors overrode no function."""

WARNS_OF_SETS = torch.__version__ >= "2.15"  # compares as a version, not as text
"""True if torch's Optimizer itself warns of parameters in a set."""


def without_dynamo_wrapper(method: Callable[P, R]) -> Callable[P, R]:
    """Return a method without torch's wrapper that disables dynamo.

    The wrapper imports torch._dynamo, and with it SymPy and Triton, on its first call. optgen's
    methods do not need the wrapper, because they are decorated with `outside_dynamo`.
    """
    return cast(Callable[P, R], getattr(method, "__wrapped__", method))


def outside_dynamo(function: F) -> F:
    """Keep dynamo from compiling a function or its callees, without importing dynamo.

    The attributes make dynamo end a graph before the call, as those of `torch.compiler.disable` do.
    The strategy keeps dynamo from compiling the function's frame, and the frames of its callees,
    when the call runs.
    """
    marked = cast(Any, function)
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "an optimizer's methods run as they are"
    skip = _eval_frame._FrameAction.SKIP
    strategy = _eval_frame._FrameExecStrategy(skip, skip)  # of the frame, of its callees
    _eval_frame.set_code_exec_strategy(marked.__code__, strategy)
    return function


def dynamo_has_read_groups(groups: Sequence[dict[str, Any]]) -> bool:
    """Tell whether dynamo has traced code that reads the groups of an optimizer.

    Dynamo then marks each parameter as one whose address stays the same.
    """
    params = (param for group in groups for param in group["params"])
    return any(hasattr(param, "_dynamo_static_input_type") for param in params)


def profile_hook_step(step: Callable[P, R]) -> Callable[P, R]:
    """Wrap a step as torch does, with the profiler's record, pre hooks and post hooks."""
    return cast(Callable[P, R], torch.optim.Optimizer.profile_hook_step(step))


_TORCH_WRAPPER_CODE = profile_hook_step(lambda: None).__code__


def wrapped_by_torch(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether torch has wrapped the step of the optimizer's class; torch then runs hooks."""
    return getattr(type(optimizer).step, "__code__", None) is _TORCH_WRAPPER_CODE


def has_no_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimizer's step has no hooks, and no profiler is active."""
    return not (
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _torch_optimizer._global_optimizer_pre_hooks
        or _torch_optimizer._global_optimizer_post_hooks
        or _profiling()
    )


def check_graph_capture(optimizer: torch.optim.Optimizer) -> None:
    """Raise torch's error if a graph is being captured and some group is not capturable."""
    if not (torch.cuda.is_initialized() or torch.xpu.is_initialized()):
        return
    without_key = [group for group in optimizer.param_groups if "capturable" not in group]
    for group in without_key:  # torch's check reads the key
        group["capturable"] = False
    try:
        optimizer._accelerator_graph_capture_health_check()
    finally:
        for group in without_key:
            del group["capturable"]


def cuda_stream(device: torch.device) -> int:
    """Return the address of the current stream of a CUDA device."""
    return torch._C._cuda_getCurrentRawStream(device.index)


def capturing() -> bool:
    """Tell whether a CUDA graph is being captured on the current stream."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def following() -> bool:
    """Tell whether something follows torch's operations, and so needs them instead of their values.

    It is autograd in reverse mode, or what `watching` tells.
    """
    return torch.is_grad_enabled() or watching()


def watching() -> bool:
    """Tell whether something besides autograd in reverse mode follows torch's operations.

    It is a compiler, a mode that sees every operation, a transform of torch.func, or autograd in
    forward mode.
    """
    return (
        compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or _forward_ad._current_level >= 0
    )


def has_exact_products() -> bool:
    """Tell whether products in float32 are to be exact on the CPU; the user may prefer bfloat16."""
    settings = getattr(torch.backends.mkldnn, "matmul", None)  # since torch 2.9
    if settings is None:
        return torch.get_float32_matmul_precision() == "highest"
    return settings.fp32_precision in ("none", "ieee")


def scalar_dtype(fused: bool = False) -> torch.dtype:
    """Return torch's dtype of `step` and of scalar states."""
    if fused or torch.get_default_dtype() != torch.float64:
        return torch.float32
    return torch.float64


def check_fused(param: Tensor) -> None:
    """Raise torch's error for a parameter that `fused=True` cannot take."""
    _torch_optimizer._device_dtype_check_for_fused(param)


def capturable_devices() -> list[str]:
    """Return the device types on which `capturable=True` works."""
    return _torch_optimizer._get_capturable_supported_devices()


def foreach_devices() -> list[str]:
    """Return the device types on which torch prefers its foreach operations."""
    return _foreach_utils._get_foreach_kernels_supported_devices()


def group_tensors(
    lists: list[list[Tensor]],
) -> dict[tuple[torch.device, torch.dtype], list[list[Tensor]]]:
    """Split parallel lists by device and dtype, as torch's optimizers do."""
    groups = _foreach_utils._group_tensors_by_device_and_dtype(cast(Any, lists))
    return {key: cast(list[list[Tensor]], columns) for key, (columns, _) in groups.items()}


def foreach_clone(tensors: list[Tensor]) -> Sequence[Tensor]:
    """Copy a list of tensors, by one call if this version of torch has `_foreach_clone`."""
    clone = getattr(torch, "_foreach_clone", None)
    copies: Sequence[Tensor] = clone(tensors) if clone else [tensor.clone() for tensor in tensors]
    return copies


def called_to_init_state() -> bool:
    """Tell whether torch's distributed checkpoints call this step, with zero gradients.

    torch takes such a step if an optimizer has no state to load a checkpoint into.
    """
    module = sys.modules.get("torch.distributed.checkpoint.state_dict")
    init_code = getattr(getattr(module, "_init_optim_state", None), "__code__", None)
    frame = None if init_code is None else sys._getframe(1)
    while frame is not None and frame.f_code is not init_code:
        frame = frame.f_back
    return frame is not None


local_tensor: Callable[[Tensor], Tensor] = attrgetter("_local_tensor")
"""Return the local tensor that a DTensor holds; `to_local()` may return a view of this tensor."""

dtensor_spec: Callable[[Tensor], Any] = attrgetter("_spec")
"""Return the spec of a DTensor: an object with its `mesh` and `placements`."""


def is_flat_parameter(param: Tensor) -> bool:
    """Tell whether a parameter is a flat parameter that FSDP 1 made of several parameters."""
    return getattr(param, "_is_flat_param", False)


def has_overlap(tensor: Tensor) -> bool:
    """Tell whether torch knows that several elements of a tensor share memory."""
    return torch._debug_has_internal_overlap(tensor) == 1


def flattened_by_fsdp(param: Tensor) -> bool:
    """Tell whether a parameter is a flat parameter of FSDP 1, or a view of one."""
    return getattr(param, "_fsdp_flattened", False)


def fsdp_gathers_with(module: torch.nn.Module) -> tuple[torch.nn.Module, ...]:
    """Return the modules whose weights FSDP2 gathers before a module's forward pass.

    These are the module itself, those that share its group, and those that
    `set_modules_to_forward_prefetch` names. There are none if it is no module of FSDP2.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not isinstance(module, fsdp.FSDPModule):
        return ()
    state = module._get_fsdp_state()
    states = (state, *state._states_to_forward_prefetch)
    return tuple(each for state in states for each in state._modules)


_DISABLED_FUNCTION = torch._C._disabled_torch_function_impl
_DISABLED_DISPATCH = torch._C._disabled_torch_dispatch_impl
_plain_classes: dict[type[Any], bool] = {Tensor: True, torch.nn.Parameter: True}


def is_plain_class(tensor_class: type[Any]) -> bool:
    """Tell whether a tensor class overrides no operation, so that its tensors are plain memory."""
    is_plain = _plain_classes.get(tensor_class)
    if is_plain is None:
        is_plain = _plain_classes[tensor_class] = (
            getattr(tensor_class, "__torch_function__", None) is _DISABLED_FUNCTION
            and getattr(tensor_class, "__torch_dispatch__", None) is _DISABLED_DISPATCH
        )
    return is_plain


# The pool of torch's own threads, on which compiled functions run.

_SYMBOLS = {
    "parallel": "GOMP_parallel",
    "id": "omp_get_thread_num",
    "team_size": "omp_get_num_threads",
    "barrier": "GOMP_barrier",
}
_forks: list[int] = []  # process ids of the forks that led to this process


class Threads(ctypes.Structure):
    """`Threads` of tensor_table.h, field by field."""

    _fields_ = [("count", c_int), *((name, c_void_p) for name in _SYMBOLS)]


def thread_pool(count: int | None = None) -> Threads:
    """Return the thread pool, by default with as many threads as torch uses in the calling thread.

    If a call used fewer threads than torch, the pool would end the other threads. A thread that
    never calls torch may pass another count: libgomp has a pool for each calling thread. A forked
    child has none of the pool's threads and would wait for them forever, so it uses one thread.
    """
    must_be_serial = _forks or not _functions()
    return _of_count(1 if must_be_serial else count or torch.get_num_threads())


@cache
def _of_count(count: int) -> Threads:
    """Return the thread pool with this count of threads; its fields must not be changed.

    torch has a count for each Python thread. Kernels of several Python threads run at once, and
    each reads its count when it allocates memory and when it starts its threads.
    """
    return Threads(count, *_functions())


@cache
def _functions() -> tuple[c_void_p, ...]:
    """Return the functions of torch's libgomp; another copy of libgomp would have another pool.

    Names are looked up where torch's own calls find them: first among the libraries that are open
    to the whole process, then among those of torch. torch's wheel for ARM opens libgomp to torch
    alone. Return an empty tuple if this torch has no libgomp.
    """
    torchs = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    libraries = [None, str(torchs)] if torchs.exists() else [None]
    for names in map(ctypes.CDLL, libraries):
        if all(hasattr(names, symbol) for symbol in _SYMBOLS.values()):
            functions = (getattr(names, symbol) for symbol in _SYMBOLS.values())
            return tuple(ctypes.cast(function, c_void_p) for function in functions)
    return ()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forks.append(os.getpid()))
