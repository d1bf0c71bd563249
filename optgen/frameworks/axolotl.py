"""axolotl: a plugin, so that its YAML files name optimizers."""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel
from transformers import Trainer

from optgen.frameworks.hugging_face import OptgenArguments


class OptgenKeys(BaseModel):
    """The keys of a YAML file that name an optimizer, beside axolotl's own.

    Attributes:
        optgen: a name of `optgen.optim.list_optimizers()`, or the path of a spec.
        optgen_args: further arguments of `optgen.optim.create_optimizer`: a mapping, or text such
            as `betas=(0.9, 0.95)`.
    """

    optgen: str
    optgen_args: dict[str, Any] | str | None = None


class OptgenPlugin(BasePlugin):
    """The plugin that `plugins` of a YAML file names: `optgen.frameworks.axolotl.OptgenPlugin`.

    axolotl makes its trainer, and then the plugin tells the trainer which optimizer to make. The
    optimizer gets the arguments of Hugging Face's Trainer as `OptgenArguments` says.
    """

    def get_input_args(self) -> str:
        """Return the path of the class whose keys axolotl's files may have."""
        return f"{OptgenKeys.__module__}.{OptgenKeys.__name__}"

    def post_trainer_create(self, cfg: Any, trainer: Trainer) -> None:
        """Put the optimizer of the file in the place of the one that the trainer would make.

        Args:
            cfg: axolotl's configuration, with the keys of `OptgenKeys`.
            trainer: The trainer, which has made no optimizer yet.

        Raises:
            ValueError: `optgen_args` cannot be read, or names the optimizer or the model.
        """
        ours = OptgenArguments(cfg.optgen, cfg.optgen_args)
        trainer.optimizer_cls_and_kwargs = ours.cls_and_kwargs(trainer.args)
