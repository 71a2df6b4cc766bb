"""The thin model that a run starts with: cut out of the full one, or drawn where that has no values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from growthring.core.axes import layout
from growthring.core.widen import normal, old_part
from growthring.errors import InputError, UnsupportedModelError
from growthring.graph.analysis import Build
from growthring.graph.check import check_finite
from growthring.graph.computed import refresh
from growthring.graph.follow import follow_attributes
from growthring.graph.groups import TensorSpec, WidthGroups
from growthring.graph.magnitudes import with_magnitudes, with_ratios
from growthring.graph.resize import copy_with, named_tensors
from growthring.graph.results import output_tensors
from growthring.planning.factories import built, call_build, checked
from growthring.planning.initial import Initial, seed_gain


def cut_seed(
    model: nn.Module,
    groups: WidthGroups,
    initial: Mapping[str, Initial],
    widths: Sequence[Mapping[int, int]],
    build: Build | None,
) -> nn.Module:
    """The seed of a model with values: its leading parts, rescaled as its initialiser would."""
    check_finite(model)
    first, full, tensors = widths[0], widths[-1], {}
    for name, tensor in with_ratios(groups.specs, named_tensors(model)).items():
        spec = groups.specs.get(name)
        part = tensor.detach().clone()
        if spec is not None:
            part = old_part(part, [layout(axis, first, full) for axis in spec.axes])
            gain = seed_gain(spec, groups, initial, first, full)
            part = part * gain if gain != 1.0 else part.contiguous()
        tensors[name] = part
    if build is not None:
        whole = with_magnitudes(groups.specs, tensors, {})
        return built(build, groups.named(first), model, whole)
    return _resized(model, groups, widths, tensors)


def drawn_seed(
    model: nn.Module,
    groups: WidthGroups,
    initial: Mapping[str, Initial],
    widths: Sequence[Mapping[int, int]],
    build: Build | None,
    device: torch.device,
    generator: torch.Generator | None,
) -> nn.Module:
    """The seed of a model without values: normal ones of the stated deviations, or what the factory makes."""
    if build is None:
        tensors = _drawn(model, groups, initial, widths, device, generator)
        seed = _resized(model, groups, widths, tensors)
    else:
        first = widths[0]
        shapes = {n: tuple(t.shape) for n, t in named_tensors(model).items()}
        shapes |= {n: spec.shape(first) for n, spec in groups.specs.items()}
        seed = checked(
            call_build(build, groups.named(first), model, device), shapes, groups.named(first)
        )
    _check_values(seed)
    return seed


def _resized(
    model: nn.Module,
    groups: WidthGroups,
    widths: Sequence[Mapping[int, int]],
    tensors: Mapping[str, Tensor],
) -> nn.Module:
    """A copy of the model with these tensors, magnitudes given as ratios, and attributes that follow."""
    seed = copy_with(model, with_magnitudes(groups.specs, tensors, {}))
    follow_attributes(seed, groups.attributes, widths[-1], widths[0])
    refresh(seed)
    return seed


def _drawn(
    model: nn.Module,
    groups: WidthGroups,
    initial: Mapping[str, Initial],
    widths: Sequence[Mapping[int, int]],
    device: torch.device,
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    """Values for the tensors of a seed: the deviations are those of its fan-in."""
    first, full, tensors = widths[0], widths[-1], {}
    for name, tensor in named_tensors(model).items():
        spec = groups.specs.get(name)
        like = torch.empty(0, dtype=tensor.dtype, device=device)
        if not isinstance(tensor, nn.Parameter) and not _is_known(name, spec):
            raise _no_values(f"buffer '{name}'")
        shape = tuple(tensor.shape) if spec is None else spec.shape(first)
        constant = 0.0 if spec is None else initial[name].constant
        if constant is not None:
            tensors[name] = torch.full(shape, constant, dtype=like.dtype, device=device)
            continue
        assert spec is not None
        std = initial[name].std * seed_gain(spec, groups, initial, first, full)
        drawn = normal(shape, std, like, generator)
        drawn[sorted(spec.zero_rows)] = 0
        tensors[name] = drawn
    return tensors


def seed_device(device: torch.device | str | None, is_drawn: bool) -> torch.device:
    """Where a seed shall be; the CPU if nothing is said.

    >>> seed_device(None, is_drawn=True)
    device(type='cpu')
    """
    try:
        where = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device={device!r} is no device of torch: {error}") from None
    if is_drawn and where.type == "meta":
        raise InputError(
            "the seed of a model on the meta device is drawn, and device='meta' holds no values: leave it out for "
            "the CPU, or pass the device that it will be trained on."
        )
    return where


def _is_known(name: str, spec: TensorSpec | None) -> bool:
    """Whether a buffer is a norm's, which torch starts at a constant."""
    is_statistic = spec is not None and spec.kind in ("mean", "variance")
    return is_statistic or name.rpartition(".")[2] == "num_batches_tracked"


def _check_values(seed: nn.Module) -> None:
    """Refuses a seed in which something is left on the meta device: a tensor in a plain attribute, say."""
    for name, tensor in named_tensors(seed).items():
        if tensor.device.type == "meta":
            raise _no_values(f"'{name}'")
    for path, module in seed.named_modules():
        for attribute, value in vars(module).items():
            if any(tensor.device.type == "meta" for tensor in output_tensors(value)):
                raise _no_values(f"the tensor '{path}.{attribute}'" if path else f"'{attribute}'")


def _no_values(what: str) -> UnsupportedModelError:
    """The refusal to make up values."""
    return UnsupportedModelError(
        f"{what} is on the meta device, and no deviation says what it holds, so no seed can be made. Pass "
        "gr.plan(..., build=), a function from widths to a module with values: its modules are taken as they are."
    )
