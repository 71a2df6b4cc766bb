"""Resized copies of a model: new tensors, followed attributes, everything else as it was.

A copy is made by `copy.deepcopy` with the tensors already in its memo, so no weight is ever copied,
tied parameters stay tied, and the user's module classes are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from growthring.core.axes import Axis, Concat, Product
from growthring.errors import UnsupportedModelError
from growthring.graph.computed import computed_tensors
from growthring.graph.follow import Attributes, follow_attributes
from growthring.graph.groups import TensorSpec
from growthring.graph.rebind import Rebinder

AttributeHandler = Callable[[nn.Module, Mapping[str, TensorSpec]], dict[str, tuple[Axis, ...]]]
_HANDLERS: dict[type[nn.Module], AttributeHandler] = {}


def register_attributes(*types: type[nn.Module]) -> Callable[[AttributeHandler], AttributeHandler]:
    """Registers which attributes of a module type hold sizes.

    The handler gets the module and the specs of its own tensors (by the name within the module) and
    returns, for
    each attribute, the axes whose sizes it holds: one axis for an int, several for a tuple.

    >>> class Scaled(nn.Linear):
    ...     pass
    >>> @register_attributes(Scaled)
    ... def scaled(module, specs):
    ...     return {"in_features": (specs["weight"].axes[1],)}
    """

    def register(handler: AttributeHandler) -> AttributeHandler:
        for module_type in types:
            _HANDLERS[module_type] = handler
        return handler

    return register


@register_attributes(nn.MultiheadAttention)
def _multihead(module: nn.Module, specs: Mapping[str, TensorSpec]) -> dict[str, tuple[Axis, ...]]:
    written = specs["out_proj.weight"].axes[0]
    attributes: dict[str, tuple[Axis, ...]] = {"embed_dim": (written,)}
    if "in_proj_weight" in specs:
        attributes |= {"kdim": (written,), "vdim": (written,)}
    else:
        attributes |= {
            "kdim": (specs["k_proj_weight"].axes[1],),
            "vdim": (specs["v_proj_weight"].axes[1],),
        }
    queries = specs["in_proj_weight" if "in_proj_weight" in specs else "q_proj_weight"].axes[0]
    while isinstance(queries, Concat):
        queries = queries.parts[0]
    if isinstance(queries, Product) and len(queries.parts) == 2:
        attributes |= {"num_heads": (queries.parts[0],), "head_dim": (queries.parts[1],)}
    return attributes


def handled_attributes(model: nn.Module, specs: Mapping[str, TensorSpec]) -> Attributes:
    """The attributes that registered handlers know of, over the whole model."""
    attributes: dict[tuple[str, str], tuple[Axis, ...]] = {}
    for path, module in model.named_modules():
        handler = next((_HANDLERS[t] for t in type(module).__mro__ if t in _HANDLERS), None)
        if handler is None:
            continue
        prefix = f"{path}." if path else ""
        own = {n.removeprefix(prefix): s for n, s in specs.items() if n.startswith(prefix)}
        for name, axes in handler(module, own).items():
            attributes[(path, name)] = axes
    return attributes


def named_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, a shared one once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def copy_with(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """A deep copy of the model in which the named parameters and buffers are the given tensors.

    Functions that the model holds (hooks, lambdas over `self`) speak of the copy.
    """
    memo: dict[int, Any] = {}
    for name, old in named_tensors(model).items():
        new = tensors.get(name)
        if new is None:
            new = old.detach().clone()
        elif new.is_inference():  # could not be a parameter
            new = new.clone()
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(new, requires_grad=old.requires_grad)
        memo[id(old)] = new
    for value in computed_tensors(model):
        memo[id(value)] = value.detach().clone()
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}), so no "
            "seed can be cut out of "
            "it. Remove what cannot be deep-copied (open files, locks, captured graphs), or pass "
            "build=."
        ) from error
    Rebinder(memo, {id(item) for item in memo.values()}).rebind(copied)
    return copied


def empty_copy(
    model: nn.Module,
    specs: Mapping[str, TensorSpec],
    attributes: Attributes,
    before: Mapping[int, int],
    after: Mapping[int, int],
) -> nn.Module:
    """A resized copy without values, for tracing (uninitialised memory is never touched)."""
    tensors = {}
    for name, old in named_tensors(model).items():
        shape = specs[name].shape(after) if name in specs else tuple(old.shape)
        same = shape == tuple(old.shape)
        tensors[name] = old.detach() if same else old.new_empty(shape)
    copied = copy_with(model, tensors)
    follow_attributes(copied, attributes, before, after)
    return copied
