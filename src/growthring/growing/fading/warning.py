"""Says that a model whose norms still fade in is more than its weights."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import nn

from growthring.errors import GrowthWarning

_INSIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
_is_silent: ContextVar[bool] = ContextVar("growthring_fades_are_saved", default=False)
_TEXT = (
    "norms of this model are still fading in after a growth: a plain model with these weights computes something "
    "else. To go on later, save Grower.state_dict() beside them; for the plain model, train on until "
    "Grower.is_complete, or end the fades with Grower.finish() (of a copy: gr.end_fades(model)), which reports "
    "what that changes."
)


@contextmanager
def fades_are_saved() -> Iterator[None]:
    """Inside, a model's state_dict is taken without a warning: what fades is saved beside it."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)


def warn_of_fades(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
    """A hook on the state_dict of a module whose statistics fade in."""
    if not _is_silent.get():
        warnings.warn(_TEXT, GrowthWarning, stacklevel=_users_frame())


def _users_frame() -> int:
    """How far up the stack the code is neither torch's nor ours: the warning is shown once for each such line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    return level
