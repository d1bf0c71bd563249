"""The mirror of torch.optim.optimizer: torch's own base class, and the hooks of all optimizers."""

from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
    required,
)

__all__ = [
    "Optimizer",
    "ParamsT",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "required",
]
