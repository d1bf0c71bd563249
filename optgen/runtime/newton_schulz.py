"""Newton-Schulz iterations of a matrix, by the cheapest of several ways.

A matrix x has m rows and n >= m columns here; a taller one is transposed. An iteration maps x to
a x + b (x x') x + c (x x')^2 x. The ways:

- "compiled": a function in C++, for CPUs with AVX512_BF16 (`newton_schulz_kernel`). It computes
  halves of symmetric products.
- "compiled square": "square", where this function iterates.
- "batched": products of a whole batch, as torch has them. It is for small matrices, for devices
  other than the CPU, and where autograd follows.
- "whole": the same matrix by matrix. A batch would be a copy, and torch's batched products are
  slower for one matrix that is long.
- "plain": matrix by matrix; only the lower half of a symmetric product is computed.
- "square": the iteration of a square matrix. If x x' = l l', with a lower triangular l, then
  x = l q, where q has orthonormal rows, and every iterate is z q, where z is the iterate of l. So
  the long side takes part in two products instead of two for each iteration. These two are in
  float32, because l is as ill-conditioned as x. The iterates z are in bfloat16.

All but "batched" and "whole" round x x' - s I instead of x x', where s is near the mean of the
diagonal: the diagonal is where rounding hurts most. `choose_way` is the cost model. Decisions 0111
and 0118 have errors and times; the square factor is that of the Cholesky QR decomposition (Fukaya
et al., 2020, with a shift).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from optgen.runtime import float32_products, newton_schulz_kernel
from optgen.runtime.newton_schulz_kernel import FirstProduct, NewtonSchulzKernel
from optgen.runtime.torch_private import is_functorch_wrapped, watching

WAYS = ("batched", "whole", "plain", "square", "compiled", "compiled square")
_WITHOUT_KERNEL = {"compiled": "plain", "compiled square": "square"}
_FORCED: ContextVar[str | None] = ContextVar("forced way", default=None)

_SHIFT = 2.0**-22  # of trace(x x'), added before the decomposition: rounding may lose as much
_PANEL = 32  # columns of a symmetric product that the compiled function computes at once
_LONG = 256  # sides of a matrix times its transpose from which bands are faster than all of it
_BAND = 128  # rows of a symmetric product that are computed at once
_BAND_LOSS = 0.06  # the time that bands lose, as a share of the whole product
_FEW_ELEMENTS = 128 * 128  # below, a batch saves more in calls than it loses
_FEW_IN_LISTS = 256 * 256  # the same for several tensors
_SAMPLE = 4  # one row of so many tells the mean of a diagonal
_SAFE = (2.0**-40, 2.0**60)  # norms whose squares are far from the limits of float32
_CLEARLY = 1.04  # times the price of whole products must exceed another way's
_GOLDEN_ANGLE = 2.399963
_TINY = torch.finfo(torch.bfloat16).tiny


@contextmanager
def force_way(way: str | None) -> Iterator[None]:
    """Take one way for all matrices on the CPU, for tests and measurements.

    Args:
        way: one of `WAYS`; None lets the cost model choose. Without the compiled function, its ways
            are those by torch.

    Raises:
        ValueError: there is no such way.
    """
    if way is not None and way not in WAYS:
        raise ValueError(f"unknown way {way!r}; there are {', '.join(WAYS)}")
    token = _FORCED.set(way)
    try:
        yield
    finally:
        _FORCED.reset(token)


class Iterations(NamedTuple):
    """The arguments of `orthogonalize` beside its matrices."""

    coefficients: Sequence[float]  # a, b, c; or three numbers for each iteration in turn
    steps: int
    eps: float  # a lower bound of the number by which a matrix is divided
    divisor: str = "norm"  # or "spectral", the root of norm(x x'), or "none"
    dtype: torch.dtype | None = torch.bfloat16  # of the iterations; None is that of the matrices

    def triples(self) -> list[Sequence[float]]:
        """Return a, b and c of each iteration."""
        last = len(self.coefficients) - 3
        firsts = (min(3 * step, last) for step in range(self.steps))
        return [self.coefficients[first : first + 3] for first in firsts]


_Run = Callable[[Tensor, Iterations], Tensor]


class Rates(NamedTuple):
    """Speeds of one CPU core, in units of 1e9 per second. Only their ratios choose a way."""

    low: float  # floating-point operations of a product in bfloat16
    single: float  # of a product in float32
    solve: float  # of decompositions and triangular systems in float32
    bytes: float  # read or written outside of products
    calls: float = 1e-4  # calls of torch
    compiled: float = 0  # operations of the compiled function; 0 if there is none


_NOMINAL = Rates(low=200, single=97, solve=50, bytes=6)


@cache
def rates() -> Rates:
    """Return the rates of this CPU, by its instructions for bfloat16.

    Those of a CPU with AVX512_BF16 are measured (benchmarks/results/matrices.md). The peak of AMX
    is 8 times that. A CPU with neither converts to float32 first.
    """
    if newton_schulz_kernel.load():
        return _NOMINAL._replace(compiled=210, single=103)
    if torch.cpu._is_amx_tile_supported():
        return Rates(low=1600, single=97, solve=50, bytes=6)
    if torch.cpu._is_avx512_bf16_supported():
        return _NOMINAL
    return Rates(low=80, single=97, solve=50, bytes=6)


@cache
def rates_without_bfloat16() -> Rates:
    """Return the rates for iterations in another dtype: all products are as slow as float32's.

    The square factor is as exact as iterations in bfloat16 only, so it is never the cheapest.
    """
    return rates()._replace(low=rates().single, solve=1e-9, compiled=0)


class Cost(NamedTuple):
    """Work of a way: floating-point operations by kind, bytes outside of products, and calls."""

    low: float = 0
    single: float = 0
    solve: float = 0
    bytes: float = 0
    calls: float = 0
    compiled: float = 0

    def seconds(self, by: Rates) -> float:
        """Return the time on one core."""
        return sum(work / rate for work, rate in zip(self, by, strict=True) if work) / 1e9


def cost_of(way: str, rows: int, cols: int, steps: int) -> Cost:
    """Return the work of one matrix with rows <= cols."""
    square, wide = 2.0 * rows**3, 2.0 * rows**2 * cols
    if way in ("batched", "whole"):
        return Cost(low=steps * (2 * wide + square), bytes=steps * 4 * rows * cols, calls=6 * steps)
    if way == "compiled":
        share = _share_of_panels(rows)
        products = share * (wide + square) + wide
        return Cost(compiled=steps * products, bytes=12 * rows * cols, calls=5)
    bands = -(-rows // _BAND)
    # Bands of few rows are slower than a whole product. The other half is copied.
    share = (bands + 1) / (2 * bands) + _BAND_LOSS if bands > 1 else 1.0
    products = share * (wide + square) + wide
    moved, calls = 12 * rows**2 + 4 * rows * cols, 8 * bands + 12
    if way == "plain":
        return Cost(low=steps * products, bytes=steps * moved, calls=steps * calls)
    around = Cost(
        single=(share + 1) * wide,
        solve=square / 6 + square / 2,
        bytes=12 * rows * cols + 40 * rows**2,
        calls=20,
    )
    if way == "compiled square":
        share = _share_of_panels(rows)
        single = (share + 1) * wide
        return around._replace(single=single, compiled=(steps * (2 * share + 1) - share) * square)
    return around._replace(
        low=(steps * (2 * share + 1) - share) * square,
        bytes=around.bytes + steps * 16 * rows**2,
        calls=around.calls + steps * calls,
    )


def _share_of_panels(rows: int) -> float:
    """Return the share of a symmetric product that panels compute."""
    return 0.5 + _PANEL / 2 / max(rows, _PANEL)


def choose_way(rows: int, cols: int, steps: int, by: Rates, count: int = 1) -> str:
    """Return the cheapest way for each of `count` matrices of the CPU, with rows <= cols.

    Whole products are taken unless another way is clearly cheaper: they are what torch's Muon does.
    The compiled function would pad matrices of fewer rows than a panel has columns.
    """
    if by.compiled and rows >= _PANEL:
        return min(_WITHOUT_KERNEL, key=lambda way: cost_of(way, rows, cols, steps).seconds(by))
    if rows * cols < _FEW_ELEMENTS:
        return "batched"

    def price(way: str) -> float:
        return cost_of(way, rows, cols, steps).seconds(by) * (1 if way == "whole" else _CLEARLY)

    way = min(("whole", "plain", "square"), key=price)
    is_batch_cheaper = count > 1 and rows * cols < _FEW_IN_LISTS
    return "batched" if way == "whole" and is_batch_cheaper else way


def work(rows: int, cols: int) -> float:
    """Return the seconds of five iterations of a matrix, to divide matrices among ranks.

    They are those of one nominal CPU, so that ranks of different machines find equal numbers.
    """
    short, long = sorted((rows, cols))
    way = choose_way(short, long, 5, _NOMINAL)
    return cost_of(way, short, long, 5).seconds(_NOMINAL)


def iterate(tensors: Sequence[Tensor], iterations: Iterations) -> Sequence[Tensor]:
    """Run the iterations on tensors of one shape and dtype.

    Args:
        tensors: matrices in the last two axes; not changed.
        iterations: what to compute.

    Returns:
        A tensor of the same shape, in the dtype of the iterations, for each tensor.
    """
    first = tensors[0]
    iterations = iterations._replace(dtype=iterations.dtype or first.dtype)
    rows, cols = sorted(first.shape[-2:])
    way = "batched"
    if first.numel() and all(map(is_plain_memory, tensors)):
        by = rates() if iterations.dtype == torch.bfloat16 else rates_without_bfloat16()
        if first.dtype not in newton_schulz_kernel.DTYPES:
            by = by._replace(compiled=0)
        way = _FORCED.get() or choose_way(rows, cols, iterations.steps, by, len(tensors))
    kernel = None
    if way in _WITHOUT_KERNEL:
        kernel = newton_schulz_kernel.load() if iterations.dtype == torch.bfloat16 else None
        way = way if kernel else _WITHOUT_KERNEL[way]
    if way == "batched":
        return _batched(_stacked(tensors, _first_dtype(first, iterations)), iterations).unbind()
    if way == "compiled" and kernel:
        return _compiled(kernel, tensors, iterations)
    run = {"whole": _whole, "plain": _plain}.get(way, partial(_square, kernel))
    return [_each_matrix(run, x, iterations) for x in tensors]


def _compiled(
    kernel: NewtonSchulzKernel, tensors: Sequence[Tensor], iterations: Iterations
) -> list[Tensor]:
    """Return the last iterates, by the compiled function."""
    triples, knows_dtype = iterations.triples(), tensors[0].dtype in newton_schulz_kernel.DTYPES
    if iterations.divisor == "norm" and knows_dtype:
        return kernel.iterate(tensors, triples, least=max(iterations.eps, _TINY))
    divided = []
    for x in tensors:
        divisor = _divisor(x.mT if x.size(-2) > x.size(-1) else x, iterations)
        x = x.to(_at_least_float32(x))
        divided.append((x if divisor is None else x / divisor.to(x.dtype)).bfloat16())
    return kernel.iterate(divided, triples, divisor=1)


def _first_dtype(x: Tensor, iterations: Iterations) -> torch.dtype:
    """Return the dtype in which a batch is divided. Only bfloat16 has the range of float32."""
    return torch.bfloat16 if iterations.dtype == torch.bfloat16 else _at_least_float32(x)


def _stacked(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return tensors of one shape as one."""
    if len(tensors) == 1:
        return tensors[0].to(dtype).unsqueeze(0)
    if not all(map(is_plain_memory, tensors)):
        return torch.stack([x.to(dtype) for x in tensors])
    stacked = tensors[0].new_empty((len(tensors), *tensors[0].shape), dtype=dtype)
    torch._foreach_copy_(stacked.unbind(), list(tensors))
    return stacked


def _each_matrix(run: _Run, x: Tensor, iterations: Iterations) -> Tensor:
    """Run the iterations on each matrix of a tensor."""
    if x.dim() > 2:
        results = x.new_empty(x.shape, dtype=iterations.dtype)
        for result, matrix in zip(results, x, strict=True):
            result.copy_(_each_matrix(run, matrix, iterations))
        return results
    return run(x.mT, iterations).mT if x.size(0) > x.size(1) else run(x, iterations)


def is_plain_memory(x: Tensor) -> bool:
    """Tell whether a tensor is an ordinary one of the CPU, whose operations nothing follows."""
    if watching() or is_functorch_wrapped(x) or (x.requires_grad and torch.is_grad_enabled()):
        return False
    return x.device.type == "cpu" and type(x.detach()) is Tensor


def _batched(stacked: Tensor, iterations: Iterations) -> Tensor:
    """Return the last iterates of matrices in the last two axes, by products of the batch."""
    shape = stacked.shape
    x = stacked.flatten(0, -3)
    is_tall = x.size(-2) > x.size(-1)
    x = x.mT if is_tall else x
    divisor = _divisor(x, iterations)
    x = x if divisor is None else x / divisor.to(x.dtype)
    x = x.to(iterations.dtype, copy=divisor is None)
    for a, b, c in iterations.triples():
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).reshape(shape)


def _whole(x: Tensor, iterations: Iterations) -> Tensor:
    """Return the last iterate of a matrix with rows <= columns, by whole products."""
    y = _divided(x, iterations)
    for a, b, c in iterations.triples():
        gram = y @ y.mT
        y = torch.addmm(y, torch.addmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return y


def _plain(x: Tensor, iterations: Iterations) -> Tensor:
    """Return the last iterate of a matrix with rows <= columns, by halves of products."""
    return _chain(_divided(x, iterations), iterations.triples(), None)


def _divided(x: Tensor, iterations: Iterations) -> Tensor:
    """Return a matrix as the iterations begin with it, in their dtype."""
    divisor = _divisor(x, iterations)
    if divisor is None:
        return x.to(iterations.dtype, copy=True)  # the iterations write into it
    if iterations.dtype != torch.bfloat16:
        x = x.to(_at_least_float32(x))
    return (x / divisor.item()).to(iterations.dtype)


def _divisor(x: Tensor, iterations: Iterations) -> Tensor | None:
    """Return the number by which to divide each matrix with rows <= columns, if any."""
    if iterations.divisor == "none":
        return None
    norm = _norm(x)
    if iterations.divisor == "spectral":
        y = (x / norm.clamp(min=_TINY).to(_at_least_float32(x))).to(iterations.dtype)
        norm = norm * _norm(y @ y.mT).sqrt()
    return norm.clamp(min=max(iterations.eps, _TINY))


def _square(kernel: NewtonSchulzKernel | None, x: Tensor, iterations: Iterations) -> Tensor:
    """Return the last iterate of a matrix with rows <= columns, by those of a square matrix."""
    if iterations.dtype != torch.bfloat16:  # the Gram matrix loses half of the digits of float32
        return _plain(x, iterations)
    y = x.float()
    square = gram(y)
    trace = square.trace().item()
    if not _SAFE[0] ** 2 < trace < _SAFE[1] ** 2:
        return _plain(x, iterations)
    scale = max(_root_of_gram(square, trace, iterations.divisor), iterations.eps)
    square /= scale * scale
    mean = trace / scale**2 / y.size(0)
    square.diagonal().add_(_SHIFT * mean * y.size(0))
    factor, failed = torch.linalg.cholesky_ex(square)
    if failed:
        return _plain(x, iterations)
    square.diagonal().sub_(mean)
    first, known = _rotate(factor, 1).bfloat16(), FirstProduct(square.bfloat16(), mean)
    if kernel:
        (last,) = kernel.iterate([first], iterations.triples(), divisor=1, first=known)
    else:
        last = _chain(first, iterations.triples(), known)
    last = _rotate(last.float(), -1)
    solved: Tensor = torch.linalg.solve_triangular(factor, last, upper=False, left=False)
    combine = solved / scale
    if y.stride(0) < y.stride(1):  # the memory of a tall matrix
        return float32_products.product(y.mT, combine.mT).bfloat16().mT
    return float32_products.product(combine, y).bfloat16()


def _root_of_gram(gram: Tensor, trace: float, divisor: str) -> float:
    """Return the divisor of x, from x x'."""
    if divisor == "none":
        return 1.0
    square = trace * (gram / trace).norm().item() if divisor == "spectral" else trace
    return float(square**0.5)


def _chain(x: Tensor, triples: Sequence[Sequence[float]], first: FirstProduct | None) -> Tensor:
    """Return the last iterate of a matrix of norm 1; its memory is used again.

    Args:
        x: a matrix with rows <= columns.
        triples: a, b, c of each iteration.
        first: x x' - s I, and s; None if they are not known yet.
    """
    rows = x.size(0)
    other, mean, gram = torch.empty_like(x), x.new_zeros(rows, rows), x.new_empty(rows, rows)
    polynomial = torch.empty_like(gram)
    for a, b, c in triples:
        if first:
            (gram, s), first = first, None
        else:
            sample = x[::_SAMPLE]
            norm = torch.linalg.vector_norm(sample, dtype=_at_least_float32(x))
            mean.diagonal().copy_(norm * norm / sample.size(0))
            s = mean[0, 0].item()
            _symmetric(x, x.mT, gram, mean, beta=-1)
        # a I + b (s I + E) + c (s I + E)^2, for E = x x' - s I
        _symmetric(gram, gram, polynomial, gram, beta=b + 2 * c * s, alpha=c)
        torch.addmm(x, polynomial, x, beta=a + b * s + c * s * s, out=other)
        x, other = other, x
    return x


def gram(x: Tensor) -> Tensor:
    """Return x x' of matrices in plain memory; the lower half is computed where this is faster."""
    if kernel := float32_products.kernel_for(x, x.mT, is_symmetric=True):
        return kernel.product(x, x.mT, is_symmetric=True)
    if x.dim() > 2 or min(x.shape) < _LONG:
        return x @ x.mT
    result = x.new_empty(x.size(0), x.size(0))
    _symmetric(x, x.mT, result)
    return result


def _rotate(x: Tensor, sign: int) -> Tensor:
    """Return x with each column and its partner rotated; the sign -1 undoes it.

    Equal singular values give a triangular factor of equal diagonal elements, which all round in
    one direction. Angles that differ make their errors differ, so that these do not add up.
    """
    half = x.size(1) // 2
    angles = torch.arange(half, dtype=x.dtype, device=x.device) * (sign * _GOLDEN_ANGLE)
    cos, sin, left, right = angles.cos(), angles.sin(), x[:, :half], x[:, half : 2 * half]
    return torch.cat((left * cos + right * sin, right * cos - left * sin, x[:, 2 * half :]), 1)


def _symmetric(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    source: Tensor | None = None,
    *,
    beta: float = 0,
    alpha: float = 1,
) -> None:
    """Write beta source + alpha left @ right, which is symmetric, to `out`, by its lower half."""
    rows = out.size(0)
    source = out if source is None else source
    for top in range(0, rows, _BAND):
        end = min(top + _BAND, rows)
        torch.addmm(
            source[top:end, :end],
            left[top:end],
            right[:, :end],
            beta=beta,
            alpha=alpha,
            out=out[top:end, :end],
        )
    if rows > _BAND:
        mirrored = out.mT.contiguous()
        for top in range(_BAND, rows, _BAND):
            end = min(top + _BAND, rows)
            out[:top, top:end] = mirrored[:top, top:end]


def _norm(x: Tensor) -> Tensor:
    """Return the norm of each matrix.

    It is in float64 where a square could underflow or overflow. On other devices nothing waits for
    the numbers that would tell, so it is always in float64 there.
    """
    dims = (-2, -1)
    if is_plain_memory(x) and x.dtype != torch.float64:
        norm = _float32_norm(x)
        if not norm.numel() or _SAFE[0] < norm.min().item() <= norm.max().item() < _SAFE[1]:
            return norm
    exact: Tensor = torch.linalg.vector_norm(x, dim=dims, keepdim=True, dtype=torch.float64)
    return exact


def _float32_norm(x: Tensor) -> Tensor:
    """Return the norm of each matrix in float32."""
    if x.dim() == 3 and x.dtype != torch.float32 and x.size(0) > 1:
        # A whole batch would be converted in memory first; a matrix fits into the cache.
        norms = torch._foreach_norm(x.unbind(), 2, torch.float32)
        return torch.stack(norms).view(-1, 1, 1)
    norm: Tensor = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=torch.float32)
    return norm


def _at_least_float32(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
