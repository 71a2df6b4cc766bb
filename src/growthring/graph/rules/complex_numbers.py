"""Complex numbers as two real parts, and Fourier transforms; conjugates are in `structure.py`."""

from __future__ import annotations

from growthring.core.axes import Axis, Fixed
from growthring.graph.rules.elementwise import broadcast
from growthring.graph.rules.registry import register_rule
from growthring.graph.rules.structure import axis_numbers
from growthring.graph.rules.walk import Walk
from growthring.graph.trace import Op


@register_rule("aten.view_as_real", "aten.view_as_real_copy")
def view_as_real(walk: Walk, op: Op) -> None:
    """A last axis of two entries: the real and the imaginary part."""
    x = walk.info(op.args[0])
    source = [*x.source, None] if x.use else None
    walk.set(op.outputs[0], [*x.axes, Fixed(2)], x.scale, x, source, x.constant)


@register_rule("aten.view_as_complex", "aten.view_as_complex_copy")
def view_as_complex(walk: Walk, op: Op) -> None:
    """The last axis, of two entries, becomes one complex number."""
    x = walk.info(op.args[0])
    walk.freeze(x.axes[-1:], "makes complex numbers of it")
    source = x.source[:-1] if x.use else None
    walk.set(op.outputs[0], x.axes[:-1], x.scale, x, source, x.constant)


@register_rule("aten.complex")
def complex_(walk: Walk, op: Op) -> None:
    """Two tensors, one for each part: linear in both."""
    infos = [walk.info(v) for v in op.args[:2]]
    axes, spans = broadcast(walk, op.outputs[0], infos)
    for axis, *spanned in zip(axes, *spans, strict=True):
        if not all(spanned):
            walk.even([axis])
    walk.set(op.outputs[0], axes, walk.carry(*infos), constant=all(i.constant for i in infos))


_ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
_TWO = tuple(f"{name}2" for name in _ONE)
_ALL = tuple(f"{name}n" for name in _ONE)


@register_rule(*(f"aten.fft_{name}" for name in (*_ONE, *_TWO, *_ALL, "fftshift", "ifftshift")))
def fourier(walk: Walk, op: Op) -> None:
    """Linear; mixes or shifts the entries of the axes it transforms, which keep their size."""
    x, out = walk.info(op.args[0]), op.outputs[0]
    base = op.name.split(".")[1].removeprefix("fft_")
    ndim = len(x.axes)
    if base in _ONE:
        dims = axis_numbers(op.arg(2, "dim", -1), ndim)
    else:
        shifts = base.endswith("shift")
        sizes = None if shifts else op.arg(1, "s")
        default = [-2, -1] if base in _TWO else range(-len(sizes) if sizes else -ndim, 0)
        given = op.arg(1 if shifts else 2, "dim")
        dims = axis_numbers(default if given is None else given, ndim)
    walk.freeze([x.axes[d] for d in dims], "transforms it as a whole")
    axes: list[Axis] = [Fixed(n) if d in dims else x.axes[d] for d, n in enumerate(out.shape)]
    walk.set(out, axes, x.scale, constant=x.constant)
