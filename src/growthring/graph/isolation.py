"""Running a user's model without leaving traces on it."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import random
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from growthring.core.defaults import default_settings
from growthring.graph.snapshot import Snapshot

Inputs = TypeVar("Inputs")
# What says nothing about a model's code: there is no room left.
NO_MEMORY = (MemoryError, torch.OutOfMemoryError)
# The caller's default device and type of numbers, while `own_settings` has others.
CALLERS: ContextVar[tuple[torch.device, torch.dtype] | None] = ContextVar("callers", default=None)


def generators() -> list[Any]:
    """The sources of random numbers of torch, Python and numpy that everybody shares."""
    shared: list[Any] = [torch.default_generator]
    if torch.cuda.is_initialized():
        shared += torch.cuda.default_generators
    if torch.backends.mps.is_available():
        shared.append(torch.mps._get_default_mps_generator())
    numpy = sys.modules.get("numpy")
    hidden = (random, "_inst"), (numpy and numpy.random.mtrand, "_rand")
    return shared + [source for place, name in hidden if (source := getattr(place, name, None))]


@contextlib.contextmanager
def kept_random() -> Iterator[None]:
    """The shared sources of random numbers are as they were afterwards."""
    kept = Snapshot(generators(), code=False)
    try:
        yield
    finally:
        kept.restore()


@contextlib.contextmanager
def fixed_random() -> Iterator[None]:
    """One fixed seed inside, the random states as they were afterwards: a model may draw numbers in forward.

    Those that are there, one by one: torch.manual_seed would also reach devices that wake up later.
    """
    with kept_random():
        for generator in generators():
            is_torch = isinstance(generator, torch.Generator)
            (generator.manual_seed if is_torch else generator.seed)(0)
        yield


@contextlib.contextmanager
def untouched(model: nn.Module, kept: Snapshot | None = None) -> Iterator[Snapshot]:
    """Everything that the model's code can reach is as it was afterwards, whatever the forward pass does to it.

    What it warns of is for the user's own passes to say.

    Args:
        model: what is run inside.
        kept: what an outer `untouched` of the same model yielded, where nothing has changed since: several
            passes need one snapshot only.
    """
    is_own = kept is None
    if kept is None:
        hooks = torch.nn.modules.module
        everywhere = [value for name, value in vars(hooks).items() if name.endswith("_hooks")]
        kept = Snapshot([model, *everywhere])
    is_done = False
    try:
        try:
            with unheard():
                yield kept
        finally:
            kept.restore()
            is_done = True
    finally:
        if not is_done:  # an interrupt came just before
            kept.restore()
        if is_own:
            kept.forget()


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """No warning inside reaches the user or becomes an error; what is said once only is still unsaid afterwards."""
    is_always = torch.is_warn_always_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_warn_always(True)  # else what torch says once would be lost for good
        try:
            yield
        finally:
            torch.set_warn_always(is_always)


def call(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls a model in a context of its own: what its code leaves in context variables goes with that."""
    return contextvars.copy_context().run(model, *args, **kwargs)


def copied(inputs: Inputs) -> Inputs:
    """A copy of a model's inputs to run on: code that works in place, or fills a cache, changes the copy."""
    memo: dict[int, Any] = {}
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor):
            memo[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
    try:
        return copy.deepcopy(inputs, memo)
    except Exception:  # something that cannot be copied is passed on as it is
        return pytree.tree_map_only(torch.Tensor, lambda t: memo[id(t)], inputs)


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """No setting of the caller's reaches inside: inference mode, autocast, default device and type of numbers.

    Tensors made in inference mode could never be trained; autocast keeps casts of the weights, which are
    others afterwards. `callers_settings` has the defaults back, for the user's own code.
    """
    if CALLERS.get() is not None:  # they are ours already
        yield
        return
    torch.clear_autocast_cache()
    device, dtype = torch.get_default_device(), torch.get_default_dtype()
    token = CALLERS.set((device, dtype))
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            for kind in ("cpu", "cuda", "xpu", "mps", "hpu", "xla"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            stack.enter_context(default_settings(torch.device("cpu"), torch.float32))
            yield
    finally:
        CALLERS.reset(token)
        torch.clear_autocast_cache()


@contextlib.contextmanager
def callers_settings() -> Iterator[None]:
    """The caller's default device and type of numbers, inside of `own_settings`."""
    callers = CALLERS.get()
    if callers is None:
        yield
        return
    token = CALLERS.set(None)
    try:
        with default_settings(*callers):
            yield
    finally:
        CALLERS.reset(token)


@contextlib.contextmanager
def settings_of(model: nn.Module, device: torch.device | None = None) -> Iterator[None]:
    """Default device and type of numbers are a model's, for code that builds another one like it.

    Args:
        model: the one that it shall be like.
        device: instead of the model's.
    """
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    if like is None or like.dtype.itemsize < 2:  # torch makes nothing of eight bits by default
        yield
        return
    with default_settings(device or like.device, like.dtype):
        yield
