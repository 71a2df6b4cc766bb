"""Entry: one model of the catalogue and what is expected of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from growthring.graph.trace import ExampleInputs

Inputs = Callable[[torch.Generator], ExampleInputs]


@dataclass(frozen=True)
class Entry:
    """A model somebody else wrote, or one written to be odd.

    Attributes:
        library: where it comes from.
        name: its name there.
        build: makes it; libraries are imported only then.
        inputs: example inputs in float32.
        quick: a smaller build of the same architecture for the tests, if there is one.
        quick_inputs: its inputs, where they differ.
        options: for `gr.plan`.
        expect: "grows", or "refused": the error's text then contains `because`.
        because: the operator or the module whose code is the reason of a refusal.
        seed_share: the seed of a quarter of the width has at most this share of the parameters. A model that came
            to be frozen in large parts would pass every other test.
        fast: whether it is in the fast suite.
        trains: whether train mode is deterministic once dropout is off, so that gradients can be compared.
    """

    library: str
    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    quick: Callable[[], nn.Module] | None = None
    quick_inputs: Inputs | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    expect: Literal["grows", "refused"] = "grows"
    because: str = ""
    seed_share: float = 0.25
    fast: bool = False
    trains: bool = False

    @property
    def label(self) -> str:
        """For test names and patterns."""
        return f"{self.library}:{self.name}"


def images(size: int, batch: int = 2, channels: int = 3) -> Inputs:
    """Random images."""
    return lambda generator: torch.randn(batch, channels, size, size, generator=generator)


def tokens(vocabulary: int, length: int = 8, batch: int = 2) -> Inputs:
    """Random tokens; 0 to 2 are left out, since configurations use them for padding and the like."""
    return lambda generator: torch.randint(3, vocabulary, (batch, length), generator=generator)


def converted(inputs: ExampleInputs, dtype: torch.dtype) -> ExampleInputs:
    """The inputs with every floating-point tensor in another precision."""
    if isinstance(inputs, torch.Tensor):
        return inputs.to(dtype) if inputs.is_floating_point() else inputs
    if isinstance(inputs, Mapping):
        return {k: converted(v, dtype) for k, v in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(converted(v, dtype) for v in inputs)
    return inputs
