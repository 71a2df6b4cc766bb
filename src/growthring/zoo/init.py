"""Initial weights of the zoo's networks (paper, section 3.1, "Weights Initialization").

torch's layers draw weights from the global random state as they are built. Every network here
builds its layers inside `untouched_rng` and then draws all weights anew, so a build that is given a
generator neither depends on that state nor advances it.

Axes of a weight: `(out, in, *kernel)`; its fan-in is in times the kernel's size.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def untouched_rng(generator: torch.Generator | None) -> Iterator[None]:
    """Restores torch's global random state afterwards, if the real weights come from a generator.

    Args:
        generator: where the real weights will come from. None means the global state itself, which
            then advances as usual.

    Example:
        >>> before = torch.get_rng_state()
        >>> with untouched_rng(torch.Generator()):
        ...     layer = nn.Linear(2, 2)
        >>> torch.equal(before, torch.get_rng_state())
        True
    """
    device = torch.get_default_device()
    if device.type in ("cpu", "meta"):
        fork = torch.random.fork_rng(devices=[], enabled=generator is not None)
    else:
        fork = torch.random.fork_rng(
            devices=[device.index or 0], enabled=generator is not None, device_type=device.type
        )
    with fork:
        yield


def fan_in(weight: Tensor) -> int:
    """Counts the inputs that one output unit sums over.

    A depthwise convolution's weight is `(channels, 1, k, k)`, so its fan-in is the kernel's size.

    Args:
        weight: the weight of a linear layer or a convolution.

    Example:
        >>> fan_in(nn.Conv2d(4, 8, kernel_size=3).weight), fan_in(nn.Linear(5, 2).weight)
        (36, 5)
    """
    return math.prod(weight.shape[1:])


@torch.no_grad()
def normal_(weight: Tensor, std: float, generator: torch.Generator | None = None) -> Tensor:
    """Fills `weight` from N(0, std²), in place.

    Args:
        weight: the tensor to fill.
        std: standard deviation.
        generator: source of randomness; torch's default one if None. It may live on another device
            than `weight`: the draw happens on the generator's device, so one seed gives one network
            everywhere.

    Returns:
        The same tensor.

    Example:
        >>> a = normal_(torch.empty(3), 0.1, torch.Generator().manual_seed(0))
        >>> b = normal_(torch.empty(3), 0.1, torch.Generator().manual_seed(0))
        >>> torch.equal(a, b)
        True
    """
    if generator is None or generator.device == weight.device:
        return weight.normal_(0.0, std, generator=generator)
    if weight.is_meta:  # a meta tensor has no values to fill
        return weight
    draw = torch.empty(weight.shape, dtype=weight.dtype, device=generator.device)
    return weight.copy_(draw.normal_(0.0, std, generator=generator))


def init_fan_in_(
    module: nn.Module, generator: torch.Generator | None = None, gain: float = math.sqrt(2.0)
) -> None:
    """Draws all linear and convolution weights inside `module` from N(0, gain² / fan_in).

    Their biases become zero. The default gain √2 is He's for layers around ReLUs. The fan-in alone
    counts, as in the paper's Table 1.

    Args:
        module: a layer, or a network that contains layers; changed in place.
        generator: source of randomness; torch's default one if None.
        gain: √2 keeps the second moment across a ReLU, 1 across a purely linear layer.

    Example:
        >>> layer = nn.Linear(200, 300)
        >>> init_fan_in_(layer, torch.Generator().manual_seed(0))
        >>> round(layer.weight.std().item(), 2)  # √(2 / 200)
        0.1
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            normal_(layer.weight, gain / math.sqrt(fan_in(layer.weight)), generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def init_output_(layer: nn.Linear, generator: torch.Generator | None = None) -> None:
    """Draws an output layer's weight from N(0, 1 / fan_in²) and sets its bias to zero.

    The usual variance is 1 / fan_in. The paper squares it (section 3.1, after Yang et al. 2021), so
    that initial logits shrink like 1 / √width and leave the output to what training adds.

    Args:
        layer: the layer that produces the logits; changed in place.
        generator: source of randomness; torch's default one if None.

    Example:
        >>> layer = nn.Linear(100, 500)
        >>> init_output_(layer, torch.Generator().manual_seed(0))
        >>> round(layer.weight.std().item(), 3), layer.bias.abs().max().item()
        (0.01, 0.0)
    """
    normal_(layer.weight, 1.0 / fan_in(layer.weight), generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
