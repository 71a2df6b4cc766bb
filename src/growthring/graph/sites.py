"""Call sites: where in a model's code a statistic over an axis is taken.

A norm that code calls as a function has no name. What identifies it is the chain of instructions
that leads from the forward of the innermost module to the call: the same in every turn of a loop, at every
depth of a recursion and for every input, and different for two calls on one line. The trace notes the site
of every reduction it sees; while a fade lasts the same chain is taken at run time to find it again.
"""

from __future__ import annotations

import dis
import functools
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import TorchFunctionMode

# What a model's code may call, each of which is one reduction.
REDUCTIONS: dict[Callable[..., Any], str] = {
    torch.mean: "mean", torch.Tensor.mean: "mean", torch.sum: "sum", torch.Tensor.sum: "sum",
    torch.var: "var", torch.Tensor.var: "var", torch.std: "std", torch.Tensor.std: "std",
    torch.var_mean: "var_mean", torch.std_mean: "std_mean",
    torch.linalg.vector_norm: "vector_norm", torch.linalg.norm: "linalg_norm",
    torch.norm: "norm", torch.Tensor.norm: "norm", torch.functional.norm: "norm",
    F.mse_loss: "loss", F.l1_loss: "loss", F.smooth_l1_loss: "loss", F.huber_loss: "huber_loss",
    F.normalize: "normalize", F.cosine_similarity: "cosine_similarity",
    F.layer_norm: "layer_norm", torch.layer_norm: "layer_norm",
    F.rms_norm: "rms_norm", torch.rms_norm: "rms_norm",
    F.group_norm: "group_norm", torch.group_norm: "group_norm",
}  # fmt: skip
META = "growthring_site"
_COMPREHENSION = re.compile(r"(\.<locals>\.<(genexpr|listcomp|setcomp|dictcomp)>)+$")

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(os.path.dirname(__file__))
_CHECKPOINT = os.path.join(_TORCH, "utils", "checkpoint.py")
# Frames of the machinery between a module's code and a call: they differ between trace, run and
# recomputation.
_MACHINERY = (
    *(
        _TORCH + name.replace("/", os.sep)
        for name in (
            "overrides.py", "utils/checkpoint.py", "autograd/", "_dynamo/", "_compile.py", "nn/modules/module.py",
            "_export/", "export/", "fx/", "_functorch/", "_ops.py", "utils/_python_dispatch.py",
            "nn/functional.py", "functional.py", "_tensor.py", "utils/_contextlib.py", "_higher_order_ops/",
        )
    ),
    os.path.join(_HERE, "graph", ""),
    os.path.join(_HERE, "growing", "fading", ""),
)  # fmt: skip
_OWN = os.path.join(_HERE, "growing", "fading", "weighted.py")
_CALL = nn.Module._call_impl.__code__


@dataclass(frozen=True)
class Site:
    """Where a call was made.

    Attributes:
        owner: the innermost module whose forward is running.
        parts: function and instruction of each frame, the innermost first.
        entry: the code that the owner's call ran first; a hook's, if a hook made the call.
        checkpoints: frames of activation checkpointing on the way, each with the number of parts inside it.
        custom: an autograd function of the user's own on the way, whose backward is its own, too, or torch.compile.
    """

    owner: nn.Module
    parts: tuple[str, ...]
    entry: CodeType | None = None
    checkpoints: tuple[tuple[FrameType, int], ...] = ()
    custom: str | None = None

    @property
    def name(self) -> str:
        """The same in every process that runs this code.

        Of a function that calls itself, only the innermost call counts: how deep it goes depends on the input.
        """
        runs = itertools.groupby(self.parts, key=_function)
        kept = [part for function, parts in runs for part in _innermost(function, parts)]
        return " > ".join(reversed(kept))


def _function(part: str) -> str:
    """The function of a frame; of a comprehension, the function that it is written in."""
    return _COMPREHENSION.sub("", part.partition("+")[0])


def _innermost(function: str, parts: Iterable[str]) -> Iterator[str]:
    """The innermost call of a function among its calls of itself, with the comprehensions that it is in."""
    for part in parts:
        yield part
        if part.partition("+")[0] == function:
            break


def entered(owner: nn.Module, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Runs the forward of a module, as if the module had been called."""
    return function(*args, **kwargs)


def resumed(site: Site, function: Callable[..., Any], *args: Any) -> Any:
    """Runs a part of a forward pass once more, as if called from `site`."""
    return function(*args)


_ENTERED, _RESUMED = entered.__code__, resumed.__code__


@functools.lru_cache(maxsize=4096)
def _is_machinery(filename: str) -> bool:
    return filename.startswith(_MACHINERY)


@functools.lru_cache(maxsize=4096)
def _instruction(code: CodeType, offset: int) -> int:
    """Where the instruction at an offset begins.

    Once it has run a few times, the interpreter specialises code: a frame may then stand on the cache behind an
    instruction, or (in Python 3.11) on the PRECALL in front of a CALL.
    """
    start, is_precall = offset, False
    for op in dis.get_instructions(code):
        if op.offset > offset and not is_precall:
            break
        start, is_precall = op.offset, op.opname == "PRECALL"
        if start > offset:
            break
    return start


def _forward_code(cls: type) -> CodeType | None:
    """The code of a class's forward, inside its decorators."""
    forward: Any = getattr(cls, "forward", None)
    while hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
    return getattr(forward, "__code__", None)


def call_site(frame: FrameType | None) -> Site | None:
    """The site of a call made in `frame`, or None where no module is running, or for our own calls."""
    parts: list[str] = []
    codes: list[CodeType] = []
    checkpoints: list[tuple[FrameType, int]] = []
    custom: str | None = None
    while frame is not None:
        code = frame.f_code
        if code is _CALL or code is _ENTERED:
            owner = frame.f_locals["self" if code is _CALL else "owner"]
            # wrappers around a class's forward come and go
            own = _forward_code(type(owner))
            start = max((i for i, c in enumerate(codes) if c is own), default=len(parts))
            entry = codes[-1] if codes else None
            return Site(owner, tuple(parts[: start + 1]), entry, tuple(checkpoints), custom)
        if code is _RESUMED:
            outer: Site = frame.f_locals["site"]
            joined = (*parts, *outer.parts)
            return Site(outer.owner, joined, outer.entry, tuple(checkpoints), custom)
        filename = code.co_filename
        if not _is_machinery(filename):
            # instructions of torch's own code change with its version
            is_torchs = filename.startswith(_TORCH)
            name = code.co_qualname
            parts.append(name if is_torchs else f"{name}+{_instruction(code, frame.f_lasti)}")
            codes.append(code)
        elif filename == _CHECKPOINT:
            checkpoints.append((frame, len(parts)))
        elif filename == _OWN:
            return None
        elif "compile_wrapper" in code.co_name:
            custom = "torch.compile"
        elif code.co_name == "apply" and "cls" in code.co_varnames:
            function = frame.f_locals.get("cls")
            if getattr(function, "__module__", "") != "torch.utils.checkpoint":
                custom = getattr(function, "__qualname__", "autograd.Function")
        frame = frame.f_back
    return None


class SiteRecorder(TorchFunctionMode):
    """While a model is traced, notes the site of each reduction on the nodes that it makes.

    Args:
        model: the traced model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # torch.export runs stand-ins that share the modules' attributes
        self._paths = {id(vars(module)): path for path, module in model.named_modules()}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in REDUCTIONS:
            return func(*args, **kwargs)
        site = call_site(sys._getframe(1))
        path = None if site is None else self._paths.get(id(vars(site.owner)))
        if site is None or path is None or site.custom or _made_by_hook(site):
            return func(*args, **kwargs)
        before = next(_newest(), None)
        result = func(*args, **kwargs)
        for node in _newest():
            if node is before:
                break
            node.meta[META] = (path, site.name)
        return result


def _newest() -> Iterator[torch.fx.Node]:
    """Nodes of the graph that is being traced, the newest first."""
    mode = get_proxy_mode()
    if mode is not None:
        yield from reversed(mode.tracer.graph.nodes)


def _made_by_hook(site: Site) -> bool:
    """Whether a hook of the module made the call: hooks run outside of what stands in for a forward."""
    owner = site.owner
    if not owner._forward_hooks and not owner._forward_pre_hooks:
        return False
    forward: Any = owner.forward
    while isinstance(forward, functools.partial):
        forward = forward.func
    forward = getattr(forward, "__func__", forward)
    code = getattr(forward, "__code__", None) or getattr(type(forward).__call__, "__code__", None)
    return code is not site.entry
