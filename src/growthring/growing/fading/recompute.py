"""Activation checkpointing: what is computed once more in the backward pass fades as in the forward pass.

A function that a module hands to `torch.utils.checkpoint` runs again when gradients are needed, outside of the
module's forward. When a statistic that fades is met inside such a function, the record that torch keeps of
it is told to run it under the same mode, as if called from the same place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from growthring.errors import FadeError
from growthring.graph.sites import Site, resumed

_RECORD = "new_frame"  # the variable of torch's that holds it


@dataclass(frozen=True)
class Recomputation:
    """A checkpointed function with the place that it was called from."""

    function: Callable[..., Any]
    site: Site
    intercepting: Callable[[], AbstractContextManager[Any]]

    def __call__(self, *args: Any) -> Any:
        """Runs it once more."""
        with self.intercepting():
            return resumed(self.site, self.function, *args)


def follow_checkpoints(site: Site, intercepting: Callable[[], AbstractContextManager[Any]]) -> None:
    """Lets the recomputation of every checkpoint between a module's forward and a call fade as well."""
    is_reentrant = False
    for frame, inside in site.checkpoints:
        name = frame.f_code.co_name
        outer = replace(site, parts=site.parts[inside:], checkpoints=())
        if name == "forward" and "ctx" in frame.f_locals:
            is_reentrant = True
            _hold(frame.f_locals["ctx"], "run_function", outer, intercepting)
        elif name == "checkpoint":
            if not is_reentrant:
                _hold(_record(frame, site), "recompute_fn", outer, intercepting)
            is_reentrant = False


def _record(frame: FrameType, site: Site) -> Any:
    """What `checkpoint(..., use_reentrant=False)` keeps for the backward pass."""
    running = getattr(frame.f_locals.get("gen"), "gi_frame", None)
    record = running.f_locals.get(_RECORD) if running is not None else None
    if not hasattr(record, "recompute_fn"):
        raise FadeError(
            f"statistics fade in inside an activation checkpoint ({site.name}), and this version of "
            "torch.utils.checkpoint keeps no record that could be told. End the fades with Grower.finish(), or "
            "checkpoint whole modules."
        )
    return record


def _hold(
    record: Any,
    name: str,
    site: Site,
    intercepting: Callable[[], AbstractContextManager[Any]],
) -> None:
    function = getattr(record, name)
    if not isinstance(function, Recomputation):
        setattr(record, name, Recomputation(function, site, intercepting))
