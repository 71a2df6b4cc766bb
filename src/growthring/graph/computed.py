"""Weights that are no parameters: a hook or a parametrization computes them before each forward pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from growthring.graph.results import output_tensors
from growthring.graph.unify import Reason


def computed_tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Tensors that modules hold and that are results of a computation; `copy.deepcopy` refuses them."""
    for module in model.modules():
        for value in vars(module).values():
            # recurrent layers keep a list of all their weights, hooks leave features in a dict
            yield from (tensor for tensor in output_tensors(value) if not tensor.is_leaf)


def refresh(model: nn.Module) -> None:
    """Computes the weights of weight-normalised modules anew, as their hooks will."""
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm):
                with torch.no_grad():
                    setattr(module, hook.name, hook.compute_weight(module))


def unsupported(model: nn.Module) -> dict[str, Reason]:
    """Tensors behind weights that are computed from all of their entries at once, and why they stay."""
    reasons: dict[str, Reason] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                text = "spectral_norm divides by an estimate of its largest singular value"
                names = [f"{hook.name}_orig", f"{hook.name}_u", f"{hook.name}_v"]
            elif isinstance(hook, BasePruningMethod):
                text = f"{type(hook).__name__} prunes it by a mask of its present shape"
                names = [f"{hook._tensor_name}_orig", f"{hook._tensor_name}_mask"]
            else:
                continue
            reason = Reason("operator", f"'{prefix}{names[0].removesuffix('_orig')}': {text}")
            reasons |= {f"{prefix}{name}": reason for name in names}
        if not nn.utils.parametrize.is_parametrized(module):
            continue
        for name, each in module.parametrizations.items():
            for step in each:
                kind = type(step).__name__
                if type(step).__module__ != "torch.nn.utils.parametrizations":
                    continue  # the user's own: operators with rules of their own
                if kind != "_WeightNorm":
                    text = f"'{prefix}{name}': the parametrization {kind} computes it from all of its entries"
                    inner = f"{prefix}parametrizations.{name}"
                    tensors = [n for n, _ in [*each.named_parameters(), *each.named_buffers()]]
                    reasons |= {f"{inner}.{n}": Reason("operator", text) for n in tensors}
    return reasons
