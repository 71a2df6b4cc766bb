"""A model on the meta device has shapes and no values: how its initialiser fills it is told, and a seed is drawn.

So a model can be planned that fits into no memory; its seed does.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from growthring.errors import InputError, UnsupportedModelError
from growthring.graph.groups import TensorSpec, WidthGroups
from growthring.graph.resize import named_tensors
from growthring.planning.initial import Initial

Deviations = float | Mapping[str, float] | Callable[[str, Tensor], float | None]

# What norms begin with, and the ratio of a magnitude to its direction's norm.
_CONSTANTS = {"gain": 1.0, "mean": 0.0, "variance": 1.0, "magnitude": 1.0}
_SHAPES = "a number for all weights, a mapping from names or globs to numbers, or a function of name and parameter"


def is_meta(model: nn.Module) -> bool:
    """Whether the model has parameters, and all of them are on the meta device.

    >>> is_meta(nn.Linear(2, 2, device="meta")), is_meta(nn.Linear(2, 2)), is_meta(nn.ReLU())
    (True, False, False)
    """
    devices = {p.device.type for p in model.parameters()}
    return devices == {"meta"}


def check_deviations(model: nn.Module, deviations: Deviations | None) -> None:
    """Refuses deviations of a model that has values, and a model without values that comes without deviations."""
    _check_alike(model)
    if deviations is None and is_meta(model):
        name = next(name for name, _ in model.named_parameters())
        raise UnsupportedModelError(
            f"'{name}' is on the meta device and has no values that its deviation could be measured on. Pass "
            f"deviations=, the standard deviations that your initialiser gives to the full-size model: {_SHAPES}; "
            "or materialise the model (model.to_empty(device=...), then initialise it) first."
        )
    if deviations is not None and not is_meta(model):
        raise InputError(
            "deviations are for a model on the meta device; of this one they are measured. Leave them out."
        )
    if deviations is not None and not callable(deviations):
        if not isinstance(deviations, Mapping):
            _checked(deviations, "deviations")
            return
        for pattern, value in deviations.items():
            _checked(value, f"deviations[{pattern!r}]")
            names = (name for name, _ in model.named_parameters())
            if not isinstance(pattern, str) or not any(fnmatch.fnmatch(n, pattern) for n in names):
                raise InputError(
                    f"deviations[{pattern!r}]: no parameter has such a name. Write it as model.named_parameters() "
                    "does, or leave it out."
                )


def _check_alike(model: nn.Module) -> None:
    """Refuses a model of which only a part has values."""
    empty = {name: p.device.type == "meta" for name, p in model.named_parameters()}
    if len(set(empty.values())) > 1:
        without, has = (next(n for n, e in empty.items() if e is kind) for kind in (True, False))
        raise UnsupportedModelError(
            f"'{without}' is on the meta device and has no values, '{has}' has some. Build the whole model under "
            "torch.device('meta') and pass deviations=, or materialise the rest (model.to_empty(device=...), then "
            "initialise it)."
        )


def stated_initials(
    model: nn.Module, groups: WidthGroups, deviations: Deviations
) -> dict[str, Initial]:
    """How each tensor of the model is initialised, by what the user says; 0 says that all of it is one value.

    Gains of norms are 1, and biases 0 where nothing is said of them by name.

    >>> import torch
    >>> from growthring.graph.discover import discover_width_groups
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("meta")
    >>> groups = discover_width_groups(net, torch.zeros(1, 4, device="meta"))
    >>> initials = stated_initials(net, groups, {"2.*": 0.0, "*weight": 0.5})
    >>> initials["0.weight"].std, initials["2.weight"].constant, initials["0.bias"].constant
    (0.5, 0.0, 0.0)
    """
    initials = {}
    for name, tensor in named_tensors(model).items():
        spec = groups.specs.get(name)
        if spec is None:
            continue
        is_drawn = spec.is_parameter and spec.kind not in _CONSTANTS
        constant = _CONSTANTS.get(spec.kind, 0.0)
        std = _stated(spec, tensor, deviations) if is_drawn else 0.0
        if std is None and spec.kind != "bias":
            raise InputError(
                f"the deviations say nothing of '{name}' {tuple(tensor.shape)}, which is drawn from: name it, or a "
                "glob that it matches ('*' for all others)."
            )
        initials[name] = Initial(std, None) if std else Initial(0.0, constant)
    return initials


def _stated(spec: TensorSpec, tensor: Tensor, deviations: Deviations) -> float | None:
    """What is said of one parameter; None where nothing is."""
    if callable(deviations):
        value = deviations(spec.name, tensor)
        return None if value is None else _checked(value, f"deviations('{spec.name}', ...)")
    if isinstance(deviations, Mapping):
        pairs = deviations.items()
        return next((float(v) for pattern, v in pairs if fnmatch.fnmatch(spec.name, pattern)), None)
    return None if spec.kind == "bias" else float(deviations)


def _checked(value: object, where: str) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) < math.inf:  # type: ignore[arg-type]
        raise InputError(f"{where} is {value!r}, not a standard deviation. Pass {_SHAPES}.")
    return float(value)  # type: ignore[arg-type]
