"""Memory layouts in which a thin network can crash: channels_last on a CPU.

oneDNN's AVX2 path corrupts the heap in the backward pass of a strided 1×1 convolution (the shortcut of a ResNet)
with 2 to 7 input channels when tensors are channels_last: the process aborts, or goes on with wrong memory.
A network that starts thin meets it where the full one does not.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils import _pytree as pytree

from growthring.core.axes import size
from growthring.planning.plan import Plan
from growthring.planning.programs import lets_inductor_choose

_SAFE = 8  # input channels from which it was not seen


def layout_notes(plan: Plan, model: nn.Module | None = None) -> list[str]:
    """In words, which layers are too thin for channels_last, if the model (the plan's own by default) is in it.

    >>> import growthring as gr
    >>> net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 1, stride=2)).to(
    ...     memory_format=torch.channels_last
    ... )
    >>> [
    ...     len(layout_notes(gr.plan(net, torch.zeros(1, 3, 8, 8), start=start)))
    ...     for start in (0.25, 0.5)
    ... ]
    [1, 0]
    """
    model = plan.model if model is None else model
    thin = thin_layers(plan, model)
    if thin is None or not _may_be_channels_last(plan, model):
        return []
    return [
        f"{thin}, and the model or its input is channels_last, on a CPU: there torch's oneDNN is known to corrupt "
        "memory in the backward pass and to crash. Choose a larger start, keep tensors in NCHW (of one channel "
        "too: look at x.stride()), or set ONEDNN_MAX_CPU_ISA=AVX."
    ]


def inductor_notes(plan: Plan, model: nn.Module) -> list[str]:
    """In words, which layers are too thin for torch.compile on a CPU, if the model is compiled.

    >>> import growthring as gr
    >>> net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 1, stride=2))
    >>> plan = gr.plan(net, torch.zeros(1, 3, 8, 8), start=0.25)
    >>> inductor_notes(plan, net)
    []
    >>> compiled = torch.compile(net)
    >>> [note[:56] for note in inductor_notes(plan, net)]
    ["'1' (a 1x1 convolution with a stride) has fewer than 8 i"]
    """
    thin = thin_layers(plan, model)
    if thin is None or any(p.device.type != "cpu" for p in model.parameters()):
        return []
    if not lets_inductor_choose(model):
        return []
    return [
        f"{thin}, and torch.compile's inductor puts convolutions into channels_last on a CPU: there torch's oneDNN "
        "is known to corrupt memory in the backward pass and to abort the process. Compile with "
        'torch.compile(model, options={"layout_optimization": False}), set TORCHINDUCTOR_LAYOUT_OPTIMIZATION=0, or '
        "choose a larger start."
    ]


def thin_layers(plan: Plan, model: nn.Module) -> str | None:
    """In words, which layers of a model are too thin for channels_last on a CPU; None if none is."""
    thin = [name for name, module in model.named_modules() if _is_thin(plan, name, module)]
    more = f" and {len(thin) - 1} more" if len(thin) > 1 else ""
    what = f"(a 1x1 convolution with a stride) has fewer than {_SAFE} input channels at first"
    return f"'{thin[0]}'{more} {what}" if thin else None


def _is_thin(plan: Plan, name: str, module: nn.Module) -> bool:
    spec = plan.groups.specs.get(f"{name}.weight" if name else "weight")
    if spec is None or not isinstance(module, nn.Conv2d):
        return False
    if module.kernel_size != (1, 1) or module.stride == (1, 1) or module.groups > 1:
        return False
    return any(1 < size(spec.axes[1], widths) < _SAFE for widths in plan.stage_widths)


def _may_be_channels_last(plan: Plan, model: nn.Module) -> bool:
    tensors = [*model.parameters(), *pytree.tree_leaves(plan.example_inputs)]
    return any(isinstance(t, torch.Tensor) and _is_channels_last(t) for t in tensors)


def _is_channels_last(tensor: torch.Tensor) -> bool:
    """By the strides: with one channel, torch calls a tensor contiguous in both formats."""
    if tensor.dim() != 4 or tensor.device.type != "cpu":
        return False
    _, channels, height, width = tensor.shape
    strides = (1, channels * width, channels)
    return height * width > 1 and tensor.stride()[1:] == strides
