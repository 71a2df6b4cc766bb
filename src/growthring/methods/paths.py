"""How units get from the layers that write them to those that read them, found by differentiating.

A new unit goes the same way as the old ones: through identity rows of norms, activations with slope 1 at 0,
filters that pass it on, pooling (which counts as averaging), residual sums. That way is a linear map over
places, the same for all units of a group. A twin with new units is run with layers cut off from what they
read, and the map is read off a new unit's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from growthring.core.axes import refs
from growthring.errors import InputError
from growthring.graph.groups import TensorSpec
from growthring.graph.trace import split_inputs
from growthring.methods.base import Job
from growthring.methods.contractions import Call, Contractions
from growthring.methods.units import Units

_PROBES = 64  # places that are probed at a time, each as one example of a batch
_MOST = 65_536  # of places: beyond it a map that is not the identity would be too large


@dataclass(frozen=True)
class UnitPath:
    """A way from one call to another along a group.

    Attributes:
        group: whose units go it.
        writer: number of the call that writes them.
        reader: number of the call that reads them.
        places: (places of the reader's inputs, places of the writer's outputs); a number for that times the
            identity.
    """

    group: int
    writer: int
    reader: int
    places: Tensor | float


class Taps(Contractions):
    """Keeps every call of a weight that grows, with a zero added to what it returns: its gradient is wanted.

    Args:
        job: the growth.
        twin: the model that will run.
        is_cut: whether what layers compute is cut off from what they read, and activations and pooling
            are those of a new unit, so that only the ways of units stay.
    """

    def __init__(self, job: Job, twin: nn.Module, is_cut: bool) -> None:
        super().__init__(job.step.plan.groups, twin, job.step.growing)
        self._is_cut, self._replaced = is_cut, _straight() if is_cut else {}
        self.calls: list[Call] = []
        self.taps: list[Tensor] = []

    def contract(self, call: Call) -> Tensor:
        """The call's result plus its tap."""
        is_cut = self._is_cut and not self.passes_on(call)
        result = call.run(call.inputs.detach() if is_cut else call.inputs, call.weight, call.bias)
        tap = torch.zeros_like(result).requires_grad_()
        self.calls.append(call)
        self.taps.append(tap)
        return result + tap

    def other(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Straight activations, pooling by averages; everything else as it is."""
        return self._replaced.get(func, func)(*args, **kwargs)


def _straight() -> Mapping[Any, Callable[..., Any]]:
    """ReLUs with slope 1 at 0, and pooling that does not depend on which of equal values is first."""

    def same(z: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return z

    ramps = (torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, functional.relu, functional.relu_)
    replacements: dict[Any, Callable[..., Any]] = dict.fromkeys([*ramps, functional.relu6], same)
    pools = {
        torch.max_pool1d: functional.avg_pool1d,
        torch.max_pool2d: functional.avg_pool2d,
        functional.max_pool1d: functional.avg_pool1d,
        functional.max_pool2d: functional.avg_pool2d,
    }
    for pool, average in pools.items():
        replacements[pool] = _averaging(average)
    replacements[functional.adaptive_max_pool1d] = functional.adaptive_avg_pool1d
    replacements[functional.adaptive_max_pool2d] = functional.adaptive_avg_pool2d
    return replacements


def _averaging(average: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def pool(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor:
        return average(x, kernel_size, stride or kernel_size, padding, ceil_mode)

    return pool


def find_paths(job: Job, twin: nn.Module) -> list[UnitPath]:
    """All ways of units from writers to readers.

    Args:
        job: the growth.
        twin: of the width after it, with new units that write nothing.
    """
    probe = _Probe(job, twin)
    taps = probe.run(1)
    paths = []
    for i, reader in enumerate(taps.calls):
        read = _groups(reader.spec, taps)
        if not read or not reader.inputs.requires_grad:
            continue
        gradients = torch.autograd.grad(
            reader.inputs.sum(), taps.taps[:i], allow_unused=True, retain_graph=True
        )
        for k, gradient in enumerate(gradients):
            writer = taps.calls[k]
            if gradient is None or taps.passes_on(writer):
                continue
            for group in read & written(writer.spec, taps):
                paths.append(UnitPath(group, k, i, probe.places(taps, group, k, i)))
    return paths


def _groups(spec: TensorSpec, taps: Taps) -> set[int]:
    return {r.group for i in spec.read for r in refs(spec.axes[i])} & taps.growing


def written(spec: TensorSpec, taps: Taps) -> set[int]:
    """The growing groups whose units a weight writes."""
    others = [a for i, a in enumerate(spec.axes) if i not in spec.read]
    return {r.group for a in others for r in refs(a)} & taps.growing


class _Probe:
    """Runs the twin on copies of one example and differentiates along the last unit of a group."""

    def __init__(self, job: Job, twin: nn.Module) -> None:
        self._job, self._twin = job, twin
        self._generator = torch.Generator().manual_seed(0)

    def run(self, copies: int) -> Taps:
        taps = Taps(self._job, self._twin, is_cut=True)
        inputs = split_inputs(self._job.step.plan.inputs_for(self._twin))
        arguments, named = pytree.tree_map_only(
            Tensor, lambda t: torch.cat([t[:1]] * copies) if t.dim() else t, inputs
        )
        with torch.enable_grad(), taps:
            self._twin(*arguments, **named)
        return taps

    def places(self, taps: Taps, group: int, writer: int, reader: int) -> Tensor | float:
        """The map over places: the identity if a random vector says so, else probed place by place."""
        read = self._unit(taps, group, writer, reader)[0]
        probe = torch.randn(read.shape, generator=self._generator).to(read)
        pulled = self._pulled(taps, group, writer, reader, probe)
        if probe.shape == pulled.shape:
            square = float((probe * probe).sum())
            scale = float((probe * pulled).sum()) / square
            rest = float((pulled - scale * probe).square().sum())
            if rest <= 1e-8 * square:
                return scale
        count = probe.numel()
        if count > _MOST:
            raise InputError(
                f"method 'gradmax' cannot grow this model: the way from "
                f"'{taps.calls[writer].spec.name}' to '{taps.calls[reader].spec.name}' has {count} places "
                "that it mixes. Use another method."
            )
        rows = []
        for start in range(0, count, _PROBES):
            number = min(_PROBES, count - start)
            many = self.run(number)
            ones = torch.zeros(number, count, device=probe.device, dtype=probe.dtype)
            ones[torch.arange(number), torch.arange(start, start + number)] = 1.0
            rows.append(self._pulled(many, group, writer, reader, ones).reshape(number, -1))
        return torch.cat(rows)

    def _unit(self, taps: Taps, group: int, writer: int, reader: int) -> tuple[Tensor, Tensor]:
        """What a reader gets of the group's last unit, and what a writer computes of it: (examples, places)."""
        return (
            _of_unit(
                taps.calls[reader].inputs, taps.calls[reader], self._position(taps, reader, group)
            ),
            _of_unit(
                taps.taps[writer], taps.calls[writer], self._position(taps, writer, group, True)
            ),
        )

    def _position(self, taps: Taps, number: int, group: int, is_written: bool = False) -> int:
        spec = taps.calls[number].spec
        axis = spec.axes[0] if is_written else spec.axes[next(iter(spec.read))]
        along = Units(self._job.step.after, [group]).along(axis)
        return int(along.argmax())

    def _pulled(self, taps: Taps, group: int, writer: int, reader: int, ones: Tensor) -> Tensor:
        read, _ = self._unit(taps, group, writer, reader)
        (gradient,) = torch.autograd.grad(
            read, [taps.taps[writer]], ones.reshape(read.shape), retain_graph=True
        )
        position = self._position(taps, writer, group, True)
        return _of_unit(gradient, taps.calls[writer], position).detach()


def _of_unit(values: Tensor, call: Call, position: int) -> Tensor:
    """The places of one unit, (examples, places), of what a call reads or computes."""
    chosen = values.select(values.dim() + call.channel_axis, position)
    return chosen.reshape(len(chosen), -1)
