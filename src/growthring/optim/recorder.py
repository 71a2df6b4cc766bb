"""RingRecorder: rate factors, weight norms and gradient norms of every ring over training, for plots."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from growthring.errors import InputError
from growthring.optim.initial import is_initialising
from growthring.optim.prepared import plain_optimizer
from growthring.optim.wrap import ring_rates_of

QUANTITIES = ("rate_factor", "weight_norm", "gradient_norm")


class RingRecorder:
    """Writes down, at each step of an optimizer, what it does to each ring (the paper's figures).

    It hooks on to `step` and keeps small tensors on their device, so recording waits for nothing; numbers
    are fetched when `rows` is read. Rings of an optimizer that adapts nothing are recorded as well:
    `gr.optim.SGD(..., rate_adaptation=None)`, or `gr.optim.with_rings(any, rate_adaptation=None)`.

    Args:
        optimizer: of `gr.optim`, or one that `gr.optim.with_rings` was called on.
        every: record each so many-th step.
        names: patterns of parameters to record, e.g. ["layer3.*.conv2.weight"]; all by default.

    >>> import growthring as gr
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> plan = gr.plan(net, torch.ones(1, 4), stages=2)
    >>> seed = plan.build_seed()
    >>> optimizer = gr.optim.SGD(seed.parameters(), lr=0.1, output_rate=True)
    >>> grower = gr.Grower(seed, plan, optimizer=optimizer)
    >>> recorder = RingRecorder(optimizer, names=["2.weight"])
    >>> seed(torch.ones(1, 4)).sum().backward()
    >>> optimizer.step()
    >>> next(recorder.rows())["rate_factor"]
    [0.25]
    """

    def __init__(
        self, optimizer: Optimizer, every: int = 1, names: Sequence[str] | None = None
    ) -> None:
        optimizer = plain_optimizer(optimizer)
        ring_rates = ring_rates_of(optimizer)
        if ring_rates is None:
            raise InputError(
                f"{type(optimizer).__name__} knows no rings. Use one of gr.optim, or "
                "gr.optim.with_rings(optimizer, rate_adaptation=None)."
            )
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InputError(f"every={every!r} is not a number of steps.")
        if isinstance(names, str):
            raise InputError(f"names={names!r} is a string; pass a list of patterns.")
        self._ring_rates, self._every, self._names = ring_rates, every, names
        self._records: list[tuple[int, dict[str, dict[str, Tensor]]]] = []
        self._handle = optimizer.register_step_pre_hook(self._record)

    @torch.no_grad()
    def _record(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        ring_rates = self._ring_rates
        if not ring_rates or ring_rates.steps % self._every or is_initialising(optimizer):
            return
        tables = (ring_rates.rate_factors(), ring_rates.weight_norms(), ring_rates.gradient_norms())
        record: dict[str, dict[str, Tensor]] = {}
        for quantity, values in zip(QUANTITIES, tables, strict=True):
            for name, value in values.items():
                if self._names is None or any(fnmatch.fnmatch(name, p) for p in self._names):
                    record.setdefault(name, {})[quantity] = value
        self._records.append((ring_rates.steps, record))

    def remove(self) -> None:
        """Stops recording."""
        self._handle.remove()

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each recorded step and parameter: its name, and a list over rings of each quantity."""
        for step, record in self._records:
            for name, values in record.items():
                yield {"step": step, "name": name, **{q: v.tolist() for q, v in values.items()}}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the rows as JSON lines, whole or not at all."""
        target = Path(path)
        part = target.with_name(target.name + ".part")
        part.write_text("".join(json.dumps(row) + "\n" for row in self.rows()), encoding="utf-8")
        part.replace(target)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws each quantity over steps, a line per ring, a row of plots per parameter (needs matplotlib)."""
        from matplotlib.figure import Figure

        names = list(dict.fromkeys(row["name"] for row in self.rows()))
        if not names:
            raise InputError("nothing was recorded: no step was taken with a Grower attached.")
        figure = Figure(figsize=(13, 2.8 * len(names)), layout="constrained")
        axes = figure.subplots(len(names), len(QUANTITIES), squeeze=False)
        for name, line in zip(names, axes, strict=True):
            rows = [row for row in self.rows() if row["name"] == name]
            for quantity, plot in zip(QUANTITIES, line, strict=True):
                num_rings = max(len(row.get(quantity, [])) for row in rows)
                for ring in range(num_rings):
                    points = [
                        (row["step"], row[quantity][ring])
                        for row in rows
                        if len(row.get(quantity, [])) > ring
                    ]
                    plot.plot(*zip(*points, strict=True), lw=1.2, label=f"ring {ring}")
                plot.set_title(f"{name}: {quantity.replace('_', ' ')}", fontsize=9)
                plot.set_xlabel("step", fontsize=8)
                plot.tick_params(labelsize=8)
        axes[0][-1].legend(fontsize=7, ncols=2)
        figure.savefig(path, dpi=110)
