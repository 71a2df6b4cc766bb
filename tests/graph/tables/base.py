"""What a row of the tables is: a small model, what must grow, what must be refused and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tests.growth_contract import randn

Made = tuple[nn.Module, Any]


@dataclass(frozen=True)
class Row:
    """One model.

    Attributes:
        make: the model and its inputs.
        grows: the growable groups and their widths; a name that starts with "?" stands for any.
        reasons: texts that must occur in the reasons of frozen groups (or in the refusal).
        options: for `plan`.
        training: whether the train-mode outputs are comparable.
        norms: "batch" (only BatchNorm or none) or "other" (ε of norms remains in preserving mode).
    """

    name: str
    make: Callable[[], Made]
    grows: Mapping[str, int]
    reasons: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    training: bool = True
    norms: str = "batch"


ROWS: list[Row] = []


def row(
    grows: Mapping[str, int] | None = None,
    *reasons: str,
    training: bool = True,
    norms: str = "batch",
    **options: Any,
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def register(make: Callable[[], Made]) -> Callable[[], Made]:
        name = make.__name__
        ROWS.append(Row(name, make, grows or {}, reasons, options, training, norms))
        return make

    return register


IMAGE = (2, 3, 6, 6)


def chain(*layers: nn.Module, inputs: Any = None) -> Made:
    return nn.Sequential(*layers), randn(*IMAGE) if inputs is None else inputs
