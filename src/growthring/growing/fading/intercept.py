"""What stands in for a module's forward while statistics that its code takes fade in.

The module's own code runs, under a mode that torch shows every call to; the reductions whose site is
known to fade are computed with weights.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.hooks import RemovableHandle

from growthring.errors import FadeError
from growthring.graph.sites import REDUCTIONS, Site, call_site, entered
from growthring.growing.fading.fade import Fade
from growthring.growing.fading.recompute import follow_checkpoints
from growthring.growing.fading.warning import warn_of_fades
from growthring.growing.fading.weighted import faded_module, parse_call, weighted

_PLAIN = (nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Table:
    """What fades in the code of one module.

    Attributes:
        fades: site -> position among the reduced axes -> fade.
        known: sites in the module's code that were traced.
    """

    fades: dict[str, dict[int, Fade]]
    known: frozenset[str]

    def sizes(self) -> set[int]:
        """Sizes of the axes that fade in."""
        return {len(fade) for fades in self.fades.values() for fade in fades.values()}

    def snapshot(self) -> Table:
        """The same with the weights as they are now."""
        kept = {s: {i: f.frozen() for i, f in fades.items()} for s, fades in self.fades.items()}
        return Table(kept, self.known)


class Intercept(TorchFunctionMode):
    """Computes the reductions that fade with weights; looks at no other function."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, Table] = {}  # of the modules that are running, by id

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        kind = REDUCTIONS.get(func)
        if kind is None:
            return func(*args, **kwargs)
        site = call_site(sys._getframe(1))
        table = None if site is None else self.tables.get(id(site.owner))
        if site is None or table is None or not table.fades:
            return func(*args, **kwargs)
        fades = table.fades.get(site.name)
        if fades is None and site.name in table.known:
            return func(*args, **kwargs)
        call = parse_call(func, kind, args, kwargs)
        sizes = [call.shape[d] for d in call.dims]
        if fades is None:
            if table.sizes().isdisjoint(sizes):
                return func(*args, **kwargs)
            raise _unseen(site, kind, sizes)
        if any(p >= len(sizes) or not fade.fits(sizes[p]) for p, fade in fades.items()):
            raise _misfit(site, kind, sizes, fades)
        if site.checkpoints:
            follow_checkpoints(site, functools.partial(intercepting, site.owner, table.snapshot()))
        return weighted(call, fades)


@contextmanager
def intercepting(module: nn.Module, table: Table) -> Iterator[None]:
    """Inside, what the module's code computes fades as the table says."""
    stack = _get_current_function_mode_stack()
    mode = next((m for m in stack if isinstance(m, Intercept)), None)
    if mode is None:
        with Intercept() as mode:
            mode.tables[id(module)] = table
            yield
        return
    outer = mode.tables.get(id(module))
    mode.tables[id(module)] = table
    try:
        yield
    finally:
        if outer is None:
            del mode.tables[id(module)]
        else:
            mode.tables[id(module)] = outer


class FadedForward:
    """Stands in for the forward of a module while statistics that its code takes fade in.

    Attributes:
        module: the module.
        own: the forward that the user had put on the instance, if any.
        table: what fades.
        hooks: one keeps torch's fused encoder layer from reading the norm's parameters itself, one says that the
            weights are not all there is.
    """

    def __init__(self, module: nn.Module, known: frozenset[str]) -> None:
        self.module, self.table = module, Table({}, known)
        self.own: Callable[..., Any] | None = vars(module).get("forward")
        self.hooks: list[RemovableHandle] = [
            module.register_forward_hook(_nothing),
            module.register_state_dict_post_hook(warn_of_fades),
        ]

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The forward that it stands in for; `inspect.signature` asks for it."""
        return self.own or MethodType(type(self.module).forward, self.module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward with faded statistics."""
        is_plain = type(self.module) in _PLAIN and self.own is None and len(self.table.fades) == 1
        if is_plain and len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
            (fades,) = self.table.fades.values()
            return faded_module(self.module, args[0], fades)
        if torch.compiler.is_compiling():
            return _run_eagerly(self, args, kwargs)
        return _run(self, args, kwargs)

    def begin(self) -> None:
        """Takes the forward's place."""
        self.module.forward = self

    def end(self) -> None:
        """Gives the module its own forward back; whoever still holds this one gets that, too."""
        self.table.fades.clear()
        for hook in self.hooks:
            hook.remove()
        if vars(self.module).get("forward") is self:
            del self.module.forward
            if self.own is not None:
                self.module.forward = self.own


def _run(stand_in: FadedForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with intercepting(stand_in.module, stand_in.table):
        return entered(stand_in.module, stand_in.__wrapped__, *args, **kwargs)


_run_eagerly = _disable_dynamo(_run)  # instructions of compiled code are others


def _nothing(module: nn.Module, args: Any, output: Any) -> None:
    """A forward hook that leaves the output alone."""


def _place(site: Site, kind: str) -> str:
    return f"'{kind}' in the code of a {type(site.owner).__name__} ({site.name})"


def _unseen(site: Site, kind: str, sizes: list[int]) -> FadeError:
    return FadeError(
        f"{_place(site, kind)} reduces axes of sizes {sizes}, one of which fades in there, but this call was not "
        "met when the model was traced, so it is not known whether it is over the growing width. Plan with "
        "example inputs that reach it, or end the fades with Grower.finish()."
    )


def _misfit(site: Site, kind: str, sizes: list[int], fades: Mapping[int, Fade]) -> FadeError:
    return FadeError(
        f"{_place(site, kind)} reduces axes of sizes {sizes}; when the model was traced axis "
        f"{min(fades)} of them was the growing one, which is {len(fades[min(fades)])} wide now. Code that "
        "reduces other axes for other inputs cannot grow: freeze the width."
    )
