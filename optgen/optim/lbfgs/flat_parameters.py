"""Treat the parameters of a group as one vector of real numbers."""

import functools

import torch
from torch import Tensor

from optgen.runtime.batch.checks import check_storages
from optgen.runtime.torch_private import is_plain_class


class FlatParameters:
    """Concatenated parameters, complex numbers as pairs of reals, 16-bit numbers as float32."""

    def __init__(self, params: list[Tensor]) -> None:
        _check_params(params)
        check_storages({"a parameter": params})
        self._params = params
        self._real_params = [_as_real(param) for param in params]
        self._sizes = [real.numel() for real in self._real_params]
        self.device = params[0].device
        self.numel = sum(self._sizes)
        dtypes = (real.dtype for real in self._real_params)
        self.dtype = functools.reduce(torch.promote_types, dtypes, torch.float32)

    def gradient(self) -> Tensor:
        """Return a copy of the gradients; a parameter without a gradient has zeros."""
        grads = (param.grad for param in self._params)
        check_storages({"a gradient": [grad for grad in grads if grad is not None]})
        return self._concatenate([_real_gradient(param) for param in self._params])

    def values(self) -> Tensor:
        """Return a copy of the parameters."""
        return self._concatenate(self._real_params)

    def _concatenate(self, tensors: list[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors]).to(self.dtype)

    def pieces(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector in the shapes of the parameters."""
        pieces = vector.split(self._sizes)
        return [
            piece.view(real.shape) for piece, real in zip(pieces, self._real_params, strict=True)
        ]

    def add(self, direction: Tensor, t: float) -> None:
        """Add `t * direction` to the parameters, in place."""
        for real, piece in zip(self._real_params, self.pieces(direction), strict=True):
            real.add_(piece, alpha=t)

    def place(self, start: Tensor, direction: Tensor, t: float) -> None:
        """Set the parameters to `start + t * direction`, in place."""
        pieces = zip(self._real_params, self.pieces(start), self.pieces(direction), strict=True)
        for real, origin, piece in pieces:
            torch.add(origin, piece, alpha=t, out=real)


def max_abs(vector: Tensor) -> float:
    """Return the largest absolute value; NaN if any element is NaN."""
    if not vector.numel():
        return 0.0
    lowest, highest = torch.aminmax(vector)
    return torch.maximum(-lowest, highest).item()


def _check_params(params: list[Tensor]) -> None:
    devices = sorted({str(param.device) for param in params})
    if len(devices) > 1:
        raise RuntimeError(
            f"LBFGS joins all parameters in one vector, so they must be on one device; "
            f"these are on {' and '.join(devices)}"
        )
    for param in params:
        if not is_plain_class(type(param)) and hasattr(param, "to_local"):
            raise RuntimeError(
                "LBFGS takes dot products of whole vectors, but each rank holds only a shard of a "
                f"{type(param).__name__}; give it parameters that are not sharded"
            )


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _real_gradient(param: Tensor) -> Tensor:
    grad = param.grad
    if grad is None:
        grad = torch.zeros_like(param)
    elif grad.layout is not torch.strided:
        grad = grad.to_dense()
    return _as_real(grad.resolve_conj())
