"""Arithmetic: runs a model's operators with other arithmetic than their own, to tell a mistake from rounding.

Two models that should compute the same never do so to the last bit, and how far they may differ depends on
the model. So the same pass is run with changed operators:

    expected    random masks (dropout) hold their expectation, since a wider mask draws other numbers
    lifted      every floating-point number has 64 bits, also where the model's code casts to fewer
    rounded     every result is off by up to one unit in the last place, at random (Monte Carlo arithmetic):
                what comes out is how much rounding shows at the model's outputs
    without_eps no ε in batch norms in train mode, so that the scale of their input does not matter
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_LOW = (torch.float16, torch.bfloat16, torch.float32)
_BATCH_NORMS = ("aten::native_batch_norm", "aten::_native_batch_norm_legit")


@dataclass(frozen=True)
class Arithmetic:
    """How a pass computes.

    Attributes:
        lifted: in 64 bits.
        rounded: seed of the rounding errors that are added, None for none.
        without_eps: without ε in batch norms that take statistics of their input.
    """

    lifted: bool = False
    rounded: int | None = None
    without_eps: bool = False

    def running(self) -> contextlib.AbstractContextManager[Any]:
        """The context to run a model in; random masks hold their expectation in all of them."""
        return _Pass(self)


class _Pass(TorchDispatchMode):
    def __init__(self, how: Arithmetic) -> None:
        super().__init__()
        self._how = how
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        expected = _EXPECTED.get(func._schema.name)
        if expected is not None:
            return expected(func, args, kwargs)
        if self._how.without_eps:
            args = _without_eps(func, args)
        if self._how.lifted:
            args, kwargs = _lift(func, args, kwargs)
        result = func(*args, **kwargs)
        if self._how.rounded is not None and _is_fresh(func):
            for item in result if isinstance(result, (tuple, list)) else (result,):
                self._disturb(item)
        return result

    def _disturb(self, tensor: Any) -> None:
        """Moves every entry by up to one unit in its last place, in place."""
        is_number = isinstance(tensor, torch.Tensor) and (
            tensor.is_floating_point() or tensor.is_complex()
        )
        if not is_number or not tensor.numel() or tensor.device.type == "meta":
            return
        generator = self._generators.get(tensor.device)
        if generator is None:
            generator = torch.Generator(tensor.device).manual_seed(self._how.rounded or 0)
            self._generators[tensor.device] = generator
        kind = tensor.real.dtype if tensor.is_complex() else tensor.dtype
        drawn = torch.rand(tensor.shape, generator=generator, device=tensor.device)
        error = (2 * drawn - 1).to(torch.float64) * torch.finfo(kind).eps
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        tensor.copy_(tensor.to(wide) * (1 + error))


def _is_fresh(func: Any) -> bool:
    """Whether an operator computes: its results are neither views of its arguments nor changed ones."""
    if func._schema.name in ("aten::detach", "aten::alias", "aten::clone", "aten::_to_copy"):
        return func._schema.name == "aten::_to_copy"
    if any(tag is torch.Tag.inplace_view for tag in func.tags):
        return False
    return all(r.alias_info is None for r in func._schema.returns) and not func._schema.is_mutable


def _without_eps(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a batch norm that takes statistics of its input, ε (the last of eight) as good as 0.

    In eval mode ε is part of a fixed factor, which running statistics make up for.
    """
    if func._schema.name in _BATCH_NORMS and len(args) == 8 and args[5]:
        return (*args[:7], 1e-60)  # not 0: a channel without variance must not become NaN
    return args


def _lift(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with every floating-point number in 64 bits, and no cast to fewer."""

    def lift(item: Any) -> Any:
        if isinstance(item, torch.Tensor) and item.device.type != "meta":
            return item.to(_wide(item.dtype))
        return _wide(item)

    if func._schema.is_mutable:  # what is written to has to stay the same tensor
        kept = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
        args = tuple(a if kept[i] else tree_map(lift, a) for i, a in enumerate(args))
        return args, {k: v if k == "out" else tree_map(lift, v) for k, v in kwargs.items()}
    return tree_map(lift, args), tree_map(lift, kwargs)


def widened(item: Any) -> Any:
    """A tensor of floating-point or complex numbers in 64 bits; anything else as it is.

    >>> widened(torch.ones(1)).dtype, widened(torch.ones(1, dtype=torch.int32)).dtype
    (torch.float64, torch.int32)
    """
    return item.to(_wide(item.dtype)) if isinstance(item, torch.Tensor) else item


def _wide(item: Any) -> Any:
    """The 64-bit type for a type of fewer bits; anything else as it is."""
    if not isinstance(item, torch.dtype):
        return item
    if item in (torch.complex32, torch.complex64):
        return torch.complex128
    return torch.float64 if item in _LOW else item


# Random masks. Other draws have shapes without a growing width (their rules freeze it) and are the same
# before and after a growth, from the same seed, as long as masks draw nothing.


def _mask_(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """`mask.bernoulli_(p)`."""
    mask: torch.Tensor = args[0]
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    return mask.copy_(p.expand_as(mask)) if isinstance(p, torch.Tensor) else mask.fill_(p)


def _mask(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """`torch.bernoulli(p)`, p a tensor; or a mask like another tensor with one p."""
    p = args[1] if len(args) > 1 else kwargs.get("p")
    return args[0].clone() if p is None else torch.full_like(args[0], p)


def _dropout(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """`native_dropout(x, p, train)`: x and its mask."""
    return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)


def _leaky(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """`rrelu_with_noise(x, noise, lower, upper, training)`: the mean slope."""
    lower, upper = (args[2], args[3]) if len(args) > 3 else (1 / 8, 1 / 3)
    result = torch.nn.functional.leaky_relu(args[0], (lower + upper) / 2)
    return args[0].copy_(result) if func._schema.name.endswith("_") else result


_EXPECTED: dict[str, Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]] = {
    "aten::bernoulli_": _mask_,
    "aten::bernoulli": _mask,
    "aten::native_dropout": _dropout,
    "aten::rrelu_with_noise": _leaky,
    "aten::rrelu_with_noise_": _leaky,
}
