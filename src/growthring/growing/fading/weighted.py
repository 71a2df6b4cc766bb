"""Reductions in which entries have weights: what torch's functions compute where all weights are 1.

Sum Σ w x, mean Σ w x / Σ w, variance Σ w (x - mean)² / (Σ w - correction), norm (Σ w |x|^p)^(1/p).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn._reduction import legacy_get_string

from growthring.errors import FadeError
from growthring.growing.fading.fade import Fade

_NAMES: dict[str, tuple[str, ...]] = {
    "mean": ("input", "dim", "keepdim"),
    "sum": ("input", "dim", "keepdim"),
    "var": ("input", "dim", "unbiased", "keepdim"),
    "norm": ("input", "p", "dim", "keepdim", "out", "dtype"),
    "linalg_norm": ("A", "ord", "dim", "keepdim"),
    "vector_norm": ("x", "ord", "dim", "keepdim"),
    "normalize": ("input", "p", "dim", "eps", "out"),
    "cosine_similarity": ("x1", "x2", "dim", "eps"),
    "loss": ("input", "target", "size_average", "reduce", "reduction"),
    "huber_loss": ("input", "target", "reduction"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
}
_NAMES |= dict.fromkeys(("std", "var_mean", "std_mean"), _NAMES["var"])
_ALIASES = {"axis": "dim", "keepdims": "keepdim"}


@dataclass(frozen=True)
class ReductionCall:
    """One call of a function of `graph.sites.REDUCTIONS`.

    Attributes:
        function: what was called.
        kind: its kind.
        given: its arguments by name.
        dims: the axes of its input that it reduces, in the order given.
    """

    function: Callable[..., Any]
    kind: str
    given: dict[str, Any]
    dims: tuple[int, ...]

    @property
    def x(self) -> Tensor:
        """The tensor that is reduced."""
        value: Tensor = self.given[_NAMES[self.kind][0]]
        return value

    @property
    def shape(self) -> torch.Size:
        """The shape that `dims` count in."""
        other = {"cosine_similarity": "x2", "loss": "target", "huber_loss": "target"}.get(self.kind)
        if other is not None:
            return torch.broadcast_shapes(self.x.shape, self.given[other].shape)
        return self.x.shape

    def run(self, **changes: Any) -> Any:
        """What the function itself returns, with some arguments changed."""
        given = self.given | changes
        return self.function(given.pop(_NAMES[self.kind][0]), **given)


def parse_call(
    function: Callable[..., Any], kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ReductionCall:
    """A call with its arguments by name, however they were passed."""
    names = _NAMES[kind]
    given = dict(zip(names, args, strict=False))
    given |= {_ALIASES.get(name, name): value for name, value in kwargs.items()}
    for alias in ("self", "input", "x", "A"):  # the first argument has a name of its own in each
        if names[0] not in given and alias in given:
            given[names[0]] = given.pop(alias)
    if kind in ("var", "std", "var_mean", "std_mean") and isinstance(given.get("dim"), bool):
        given["unbiased"] = given.pop("dim")  # var(x, unbiased)
    call = ReductionCall(function, kind, given, ())
    ndim = len(call.shape)
    if kind in ("layer_norm", "rms_norm"):
        dims: Sequence[int] = range(ndim - len(given["normalized_shape"]), ndim)
    elif kind == "group_norm":
        dims = range(1, ndim)
    else:
        default = 1 if kind in ("normalize", "cosine_similarity") else None
        dim = given.get("dim", default)
        dims = [dim] if isinstance(dim, int) else list(dim) if dim is not None else []
        dims = dims or range(ndim)
    return ReductionCall(function, kind, given, tuple(d % ndim if ndim else 0 for d in dims))


def weighted(call: ReductionCall, fades: Mapping[int, Fade]) -> Any:
    """The reduction with the weights of some of the axes that it reduces, by their position."""
    x = call.x
    if call.given.get("out") is not None:
        raise FadeError("a reduction over a width that fades in writes to out=; assign its result.")
    weights: Tensor | None = None
    # a tensor in the end: a number would be a constant of compiled code
    total: Tensor | float = 1.0
    for position, d in enumerate(call.dims):
        fade = fades.get(position)
        total = total * (call.shape[d] * (1.0 if fade is None else fade.share.to(x.device)))
        if fade is not None:
            mine = fade.along(x, d - len(call.shape) + x.dim(), call.shape[d])
            weights = mine if weights is None else weights * mine
    assert weights is not None and isinstance(total, Tensor)
    result = _WEIGHTED[call.kind](call, weights, total)
    if any(fade.is_spread for fade in fades.values()):
        pair = isinstance(result, tuple)
        result = (result[0], result[1] * weights) if pair else result * weights
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(
        kind
    ):  # which type autocast gives is its own affair
        plain = call.run()
        return _cast(result, plain if isinstance(plain, tuple) else (plain,))
    dtype = call.given.get("dtype") or x.dtype
    pair = isinstance(result, tuple)
    return tuple(r.to(dtype) for r in result) if pair else result.to(dtype)


def _cast(result: Any, like: Sequence[Tensor]) -> Any:
    if isinstance(result, tuple):
        return tuple(r.to(p.dtype) for r, p in zip(result, like, strict=True))
    return result.to(like[0].dtype)


def _as(number: Tensor, like: Tensor) -> Tensor:
    """A number in the type of a result, which has no axes perhaps: then the number's own type would count."""
    return number.to(like.dtype)


def _sum(call: ReductionCall, weights: Tensor, total: Tensor) -> Tensor:
    result: Tensor = call.run(input=call.x * weights)
    return result


def _mean(call: ReductionCall, weights: Tensor, total: Tensor) -> Tensor:
    count = math.prod(call.shape[d] for d in call.dims)
    result: Tensor = call.run(input=call.x * weights)
    return result * _as(count / total, result)


def _moments(call: ReductionCall, weights: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sum of squares about it, with every axis kept."""
    mean = (call.x * weights).sum(call.dims, keepdim=True) / total
    centred = call.x - mean
    return mean, (centred * centred.conj() * weights).sum(call.dims, keepdim=True)


def _variance(call: ReductionCall, weights: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    mean, squares = _moments(call, weights, total)
    correction = call.given.get("correction")
    if correction is None:
        correction = 1 if call.given.get("unbiased", True) else 0
    variance = squares / (total - float(correction)).clamp_min(0.0)
    if not call.given.get("keepdim", False):
        mean, variance = mean.squeeze(call.dims), variance.squeeze(call.dims)
    return variance, mean


def _var(call: ReductionCall, weights: Tensor, total: Tensor) -> Tensor:
    return _variance(call, weights, total)[0]


def _std(call: ReductionCall, weights: Tensor, total: Tensor) -> Tensor:
    return _variance(call, weights, total)[0].sqrt()


def _std_mean(call: ReductionCall, weights: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    variance, mean = _variance(call, weights, total)
    return variance.sqrt(), mean


def _order(call: ReductionCall) -> float:
    order = call.given.get("ord", call.given.get("p"))
    return float(order) if isinstance(order, (int, float)) else 2.0


def _norm(call: ReductionCall, weights: Tensor, total: Tensor) -> Tensor:
    first = _NAMES[call.kind][0]
    result: Tensor = call.run(**{first: call.x * weights ** (1 / _order(call))})
    return result


def _normalize(call: ReductionCall, weights: Tensor, total: Tensor) -> Tensor:
    scaled = call.x * weights ** (1 / _order(call))
    length = torch.linalg.vector_norm(scaled, _order(call), call.dims, keepdim=True)
    return call.x / length.clamp_min(call.given.get("eps", 1e-12))


def _cosine(call: ReductionCall, weights: Tensor, total: Tensor) -> Tensor:
    roots = weights.sqrt()
    result: Tensor = call.run(x1=call.x * roots, x2=call.given["x2"] * roots)
    return result


def _loss(call: ReductionCall, weights: Tensor, total: Tensor) -> Tensor:
    old: dict[str, Any] = {n: call.given[n] for n in ("size_average", "reduce") if n in call.given}
    reduction = call.given.get("reduction", "mean")
    if any(value is not None for value in old.values()):  # as it was said before `reduction`
        reduction = legacy_get_string(old.get("size_average"), old.get("reduce"), False)
    losses: Tensor = call.run(reduction="none", **dict.fromkeys(old)) * weights
    if reduction == "sum":
        return losses.sum()
    own = call.given.get("weight")  # the user's, which `losses` are multiplied by already
    return losses.sum() / (_as(total, losses) if own is None else (own * weights).sum())


def _layer_norm(call: ReductionCall, weights: Tensor, total: Tensor) -> Tensor:
    gain, bias = call.given.get("weight"), call.given.get("bias")
    if call.kind == "group_norm":  # one entry for each channel, which is axis 1
        shape = [-1] + [1] * (call.x.dim() - 2)
        gain = None if gain is None else gain.reshape(shape)
        bias = None if bias is None else bias.reshape(shape)
    eps = call.given.get("eps", None if call.kind == "rms_norm" else 1e-5)
    eps = torch.finfo(call.x.dtype).eps if eps is None else eps
    return normalised(call.x, call.dims, weights / total, call.kind != "rms_norm", eps, gain, bias)


def normalised(
    x: Tensor,
    dims: tuple[int, ...],
    shares: Tensor,
    is_centred: bool,
    eps: float,
    gain: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """A layer norm (RMS norm, if it is not centred) with shares of the entries that sum to 1."""
    if is_centred:
        x = x - (x * shares).sum(dims, keepdim=True)
    else:
        x = x.to(torch.promote_types(x.dtype, shares.dtype))
    square = (x * x * shares).sum(dims, keepdim=True)
    out = x * torch.rsqrt(square + eps)
    out = out if gain is None else out * gain
    return out if bias is None else out + bias


def faded_module(module: nn.Module, x: Tensor, fades: Mapping[int, Fade]) -> Tensor:
    """A plain `nn.LayerNorm` or `nn.RMSNorm` with weights, without its own code."""
    assert isinstance(module, (nn.LayerNorm, nn.RMSNorm))
    if x.is_nested:  # what nn.TransformerEncoder makes of padded sequences in eval mode
        return torch.nested.as_nested_tensor(
            [faded_module(module, part, fades) for part in x.unbind()]
        )
    kind = "layer_norm" if isinstance(module, nn.LayerNorm) else "rms_norm"
    names = ("normalized_shape", "weight", "bias", "eps")
    given = {name: getattr(module, name, None) for name in names}
    dims = tuple(range(x.dim() - len(module.normalized_shape), x.dim()))
    function = getattr(nn.functional, kind)
    given = given if kind == "layer_norm" else {k: v for k, v in given.items() if k != "bias"}
    result: Tensor = weighted(ReductionCall(function, kind, {"input": x} | given, dims), fades)
    return result


_WEIGHTED: dict[str, Callable[[ReductionCall, Tensor, Tensor], Any]] = {
    "sum": _sum, "mean": _mean, "var": _var, "std": _std, "var_mean": _variance, "std_mean": _std_mean,
    "norm": _norm, "linalg_norm": _norm, "vector_norm": _norm, "normalize": _normalize,
    "cosine_similarity": _cosine, "loss": _loss, "huber_loss": _loss,
    "layer_norm": _layer_norm, "rms_norm": _layer_norm, "group_norm": _layer_norm,
}  # fmt: skip
