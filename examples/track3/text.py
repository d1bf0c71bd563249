"""Text for a small model: the documentation of the Python language, which ships with Python."""

from __future__ import annotations

from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch import Tensor

SYMBOLS = 256  # the values of a byte


@dataclass(frozen=True)
class Text:
    """Bytes for training, and held-out bytes for validation."""

    train: Tensor
    validation: Tensor

    @classmethod
    def load(cls, held_out: int = 10) -> Text:
        """Return the text. In the order of names, every `held_out`-th topic is for validation."""
        parts: tuple[list[str], list[str]] = ([], [])
        distinct_topics = dict.fromkeys(topics[name] for name in sorted(topics))
        for index, topic in enumerate(distinct_topics):
            parts[index % held_out == 0].append(topic)
        train, validation = (
            torch.frombuffer(bytearray("\n".join(part).encode()), dtype=torch.uint8).long()
            for part in parts
        )
        return cls(train, validation)

    def batch(self, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random pieces of the training text, and for each of their bytes the next byte."""
        starts = torch.randint(len(self.train) - length, (size,), generator=generator)
        pieces = torch.stack([self.train[i : i + length + 1] for i in starts.tolist()])
        return pieces[:, :-1], pieces[:, 1:]

    def validation_pieces(self, count: int, length: int) -> tuple[Tensor, Tensor]:
        """Return pieces of the held-out text, evenly spread, and the bytes that follow."""
        starts = torch.linspace(0, len(self.validation) - length - 1, count).long()
        pieces = torch.stack([self.validation[i : i + length + 1] for i in starts.tolist()])
        return pieces[:, :-1], pieces[:, 1:]
