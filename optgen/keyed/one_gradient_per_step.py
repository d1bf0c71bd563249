"""Check that a parameter that is updated in the backward pass has one gradient per step."""

from torch import Tensor


class OneGradientPerStep:
    """Record of the parameters that have had a gradient since the last step."""

    def __init__(self) -> None:
        self._with_gradient: set[Tensor] = set()

    def __contains__(self, param: Tensor) -> bool:
        return param in self._with_gradient

    def record(self, name: str, param: Tensor) -> None:
        """Record that a parameter has a gradient.

        Raises:
            RuntimeError: The parameter already had a gradient since the last step.
        """
        if param in self._with_gradient:
            param.grad = None
            raise RuntimeError(
                f"{name} has a second gradient since the last step, and was updated with the "
                "first: call fused_optimizer.step() after each backward pass; to accumulate "
                "gradients, use an optimizer that steps after the backward passes"
            )
        self._with_gradient.add(param)

    def begin_step(self) -> None:
        """Begin a new step, in which every parameter may have a gradient again."""
        self._with_gradient.clear()
