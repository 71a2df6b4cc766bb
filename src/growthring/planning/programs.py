"""Programs: what torch.compile made for the widths that a model had before a growth.

torch keeps all programs of a function together, whatever model runs it, and after eight (its recompile limit) runs
the function uncompiled for good. A plan of nine stages, or of five with norms that fade in, would get there with
programs of which it needs one.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from torch import nn

from growthring.errors import GrowthWarning

_TEXT = (
    "what torch.compile made for the model's former widths cannot be dropped with this version of torch ({error}): "
    "after {limit} stages it would go on uncompiled. Call torch.compiler.reset() after each growth, or raise "
    "torch._dynamo.config.recompile_limit."
)


def drop_programs(models: Iterable[nn.Module]) -> None:
    """Drops programs that were compiled for former widths of models.

    Those of compiled modules that have their parameters go. A function whose owner is not known (a compiled step of
    training), or that other models share, loses its programs when it has more than half of those that torch allows;
    they are made again when they are needed. What belongs to other compiled modules alone stays.

    Args:
        models: that have grown.
    """
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None:  # nothing was ever compiled
        return
    try:
        _drop(dynamo, models)
    except (AttributeError, ImportError, TypeError) as error:  # private parts of torch
        limit = getattr(dynamo.config, "recompile_limit", 8)
        warnings.warn(_TEXT.format(error=error, limit=limit), GrowthWarning, stacklevel=2)


def lets_inductor_choose(model: nn.Module) -> bool:
    """Whether a module that has parameters of the model is compiled by inductor, which may choose channels_last."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return False
    own = _identities([model])
    calls = [call for call in _calls(dynamo) if _identities([call]) & own]
    try:
        return any(_chooses_layouts(_backend(dynamo, call)) for call in calls)
    except (AttributeError, ImportError, TypeError):  # private parts of torch: it may be
        return True


def _chooses_layouts(backend: Any) -> bool:
    """Whether the backend of a call of torch.compile is inductor, and it may choose channels_last."""
    if getattr(backend, "compiler_name", "") != "inductor":
        return False
    inductor: Any = sys.modules.get("torch._inductor.config")
    by_default = getattr(inductor, "layout_optimization", True)
    return bool(backend.config.get("layout_optimization", by_default))


def _drop(dynamo: Any, models: Iterable[nn.Module]) -> None:
    with dynamo.convert_frame.compile_lock:
        programs = list(_programs(dynamo))
        if not programs:
            return
        own, foreign = _owners(dynamo, models)
        for code, backends in programs:
            makers = set(backends)
            is_full = len(backends) > dynamo.config.recompile_limit // 2
            if makers <= own or (is_full and not makers <= foreign):
                dynamo.eval_frame.reset_code(code)


def _programs(dynamo: Any) -> Iterator[tuple[CodeType, list[int]]]:
    """Functions that have programs, with the call of torch.compile that each is from: by the backend it made."""
    for reference in list(dynamo.convert_frame.input_codes.seen):
        code = reference()
        entries = [] if code is None else dynamo.eval_frame._debug_get_cache_entry_list(code)
        if code is not None and entries:
            yield code, [id(entry.backend) for entry in entries]


def _owners(dynamo: Any, models: Iterable[nn.Module]) -> tuple[set[int], set[int]]:
    """Calls of torch.compile on modules: those that have parameters of the models, and the others."""
    identities = _identities(models)
    own: set[int] = set()
    foreign: set[int] = set()
    for call in _calls(dynamo):
        (own if _identities([call]) & identities else foreign).add(id(_backend(dynamo, call)))
    return own, foreign - own


def _calls(dynamo: Any) -> Iterator[Any]:
    """All modules that are compiled in this process."""
    for item in gc.get_objects():
        if issubclass(type(item), dynamo.OptimizedModule) and "_orig_mod" in item.__dict__.get(
            "_modules", ()
        ):
            yield item


def _identities(models: Iterable[nn.Module]) -> set[int]:
    """The parameters of models, whatever holds them."""
    return {id(p) for model in models for p in model.parameters()}


def _backend(dynamo: Any, compiled: Any) -> Any:
    """What torch.compile made for a module: each call makes its own."""
    return dynamo.eval_frame.innermost_backend(compiled.dynamo_ctx.callback)
