"""Small networks for recipes of tests, and a stream of vectors."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from growthring.data.stream import BatchStream, Prepare


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.dropout(self.up(self.norm(x)).relu()))


class Normed(nn.Module):
    """A residual stream with LayerNorms, whose statistics fade in; its images are flattened."""

    def __init__(self, width: int, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, width)
        self.block = Block(width, dropout)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.block(self.embed(x.flatten(1)))))


def normed(width: int = 8, inputs: int = 64, outputs: int = 10, dropout: float = 0.0) -> nn.Module:
    return Normed(width, inputs, outputs, dropout)


def plain(width: int = 8, inputs: int = 64, outputs: int = 10, dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


class Vectors(BatchStream):
    """A user's own stream: vectors and targets in memory."""

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        batch_size: int,
        generator: torch.Generator | None,
        drop_last: bool = False,
    ) -> None:
        super().__init__(len(inputs), batch_size, generator, drop_last)
        self.inputs, self.targets = inputs, targets

    def _preparing(self) -> AbstractContextManager[Prepare]:
        return nullcontext(lambda chosen: lambda: (self.inputs[chosen], self.targets[chosen]))


def regression(generator: torch.Generator | None, drop_last: bool = False) -> Vectors:
    """40 vectors of 6 numbers, and two numbers to learn from each."""
    source = torch.Generator().manual_seed(5)
    inputs = torch.randn(40, 6, generator=source)
    targets = inputs @ torch.randn(6, 2, generator=source)
    return Vectors(inputs, targets, 16, generator, drop_last)
