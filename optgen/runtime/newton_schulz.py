"""Newton-Schulz iterations of a matrix, by the cheapest of several ways.

A matrix x has m rows and n >= m columns here; a taller one is transposed. An iteration maps x to
a x + b (x x') x + c (x x')^2 x. The ways:

- "compiled": a function in C++, for CPUs with AVX512_BF16 (`newton_schulz_kernel`). It computes
  halves of symmetric products.
- "compiled square": "square", where this function iterates.
- "batched": products of a whole batch, as torch has them. It is for small matrices, for devices
  other than the CPU, and where autograd follows.
- "symmetric": "batched" with a Triton kernel for halves of symmetric products, in 16 bits. It is
  for CUDA, and taken only where it is forced: no GPU has timed it yet.
- "whole": the same matrix by matrix. A batch would be a copy, and torch's batched products are
  slower for one matrix that is long.
- "plain": matrix by matrix; only the lower half of a symmetric product is computed.
- "square": the iteration of a square matrix. If x x' = l l', with a lower triangular l, then
  x = l q, where q has orthonormal rows, and every iterate is z q, where z is the iterate of l. So
  the long side takes part in two products instead of two for each iteration. These two are in
  float32, because l is as ill-conditioned as x. The iterates z are in bfloat16.

All but "batched" and "whole" round x x' - s I instead of x x', where s is near the mean of the
diagonal: the diagonal is where rounding hurts most. `newton_schulz_cost` chooses. Decisions 0111
and 0118 have errors and times; the square factor is that of the Cholesky QR decomposition (Fukaya
et al., 2020, with a shift).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from optgen.runtime import float32_products, newton_schulz_kernel
from optgen.runtime.newton_schulz_cost import (
    BAND,
    WITHOUT_KERNEL,
    choose_way,
    rates,
    rates_without_bfloat16,
)
from optgen.runtime.newton_schulz_kernel import FirstProduct, NewtonSchulzKernel
from optgen.runtime.torch_private import is_functorch_wrapped, watching

WAYS = ("batched", "whole", "plain", "square", "compiled", "compiled square")
"""The ways of matrices on the CPU. Those on a GPU know "batched" and "symmetric"."""
_FORCED: ContextVar[str | None] = ContextVar("forced way", default=None)

_SHIFT = 2.0**-22  # of trace(x x'), added before the decomposition: rounding may lose as much
_LONG = 256  # sides of a matrix times its transpose from which bands are faster than all of it
_SAMPLE = 4  # one row of so many tells the mean of a diagonal
_SAFE = (2.0**-40, 2.0**60)  # norms whose squares are far from the limits of float32
_GOLDEN_ANGLE = 2.399963
_TINY = torch.finfo(torch.bfloat16).tiny
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)


@contextmanager
def force_way(way: str | None) -> Iterator[None]:
    """Take one way for all matrices, for tests and measurements.

    Args:
        way: one of `WAYS`, or "symmetric"; None lets the cost model choose. Without the compiled
            function, its ways are those by torch. On a GPU, ways of the CPU are "batched"; on a
            CPU, "symmetric" is an error of Triton's.

    Raises:
        ValueError: there is no such way.
    """
    ways = (*WAYS, "symmetric")
    if way is not None and way not in ways:
        raise ValueError(f"unknown way {way!r}; there are {', '.join(ways)}")
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
    way = _way(tensors, iterations)
    kernel = None
    if way in WITHOUT_KERNEL:
        kernel = newton_schulz_kernel.load() if iterations.dtype == torch.bfloat16 else None
        way = way if kernel else WITHOUT_KERNEL[way]
    if way in ("batched", "symmetric"):
        stacked = _stacked(tensors, _first_dtype(first, iterations))
        return _batched(stacked, iterations, is_symmetric=way == "symmetric").unbind()
    if way == "compiled" and kernel:
        return _compiled(kernel, tensors, iterations)
    run = {"whole": _whole, "plain": _plain}.get(way, partial(_square, kernel))
    return [_each_matrix(run, x, iterations) for x in tensors]


def _way(tensors: Sequence[Tensor], iterations: Iterations) -> str:
    """Return the way for tensors of one shape and dtype."""
    first, forced = tensors[0], _FORCED.get()
    if not first.numel() or any(map(_is_followed, tensors)):
        return "batched"
    if forced == "symmetric":
        return forced if iterations.dtype in _SIXTEEN_BITS else "batched"
    if not all(map(is_plain_memory, tensors)):
        return "batched"
    by = rates() if iterations.dtype == torch.bfloat16 else rates_without_bfloat16()
    if first.dtype not in newton_schulz_kernel.DTYPES:
        by = by._replace(compiled=0)
    rows, cols = sorted(first.shape[-2:])
    return forced or choose_way(rows, cols, iterations.steps, by, len(tensors))


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
    return x.device.type == "cpu" and not _is_followed(x)


def _is_followed(x: Tensor) -> bool:
    """Tell whether something follows a tensor's operations, or it is no ordinary one."""
    if watching() or is_functorch_wrapped(x) or (x.requires_grad and torch.is_grad_enabled()):
        return True
    return type(x.detach()) is not Tensor


def _batched(stacked: Tensor, iterations: Iterations, is_symmetric: bool = False) -> Tensor:
    """Return the last iterates of matrices in the last two axes, by products of the batch."""
    if is_symmetric:
        from optgen.runtime.symmetric_products import symmetric_product  # imports Triton
    shape = stacked.shape
    x = stacked.flatten(0, -3)
    is_tall = x.size(-2) > x.size(-1)
    x = x.mT if is_tall else x
    divisor = _divisor(x, iterations)
    x = x if divisor is None else x / divisor.to(x.dtype)
    x = x.to(iterations.dtype, copy=divisor is None)
    for a, b, c in iterations.triples():
        if is_symmetric:
            gram = symmetric_product(x)
            polynomial = symmetric_product(gram, gram, beta=b, alpha=c)
        else:
            gram = torch.bmm(x, x.mT)
            polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
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
    for top in range(0, rows, BAND):
        end = min(top + BAND, rows)
        torch.addmm(
            source[top:end, :end],
            left[top:end],
            right[:, :end],
            beta=beta,
            alpha=alpha,
            out=out[top:end, :end],
        )
    if rows > BAND:
        mirrored = out.mT.contiguous()
        for top in range(BAND, rows, BAND):
            end = min(top + BAND, rows)
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
