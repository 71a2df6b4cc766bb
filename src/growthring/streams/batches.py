"""StageBatches: the batches of the stage that a run is in, for a training loop of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch

from growthring.data.batch import Batch
from growthring.data.given import as_stream
from growthring.errors import InputError
from growthring.planning.plan import Plan
from growthring.streams.base import GrowingData


class Stages(Protocol):
    """What knows which stage a run is in: a `Grower`."""

    @property
    def stage(self) -> int:
        """The present stage."""

    @property
    def num_steps(self) -> int:
        """Training steps so far."""

    @property
    def plan(self) -> Plan:
        """The plan of the run."""


class StageBatches:
    """Batches of growing data, one epoch after the other, of the stage that a Grower is in.

    A loop over it lasts until the plan's steps are done, and each growth brings the next stage's data; nothing
    else has to be called. Without a Grower a loop lasts for one epoch, and `enter` brings the next data. A loop
    that was left goes on where it was, through `state_dict` also in another process.

    Args:
        data: what each stage has.
        batch_size: examples per batch; by default the plan's. Loaders have their own.
        grower: whose stages it follows. Its plan has to know the steps of the run.
        seed: of the order.

    >>> from torch.utils.data import TensorDataset
    >>> from growthring.streams import ProgressiveData
    >>> data = TensorDataset(torch.arange(20.0), torch.arange(20) % 2)
    >>> batches = StageBatches(ProgressiveData(data, (0.5, 1.0)), batch_size=5)
    >>> first = len(list(batches))
    >>> batches.enter(1)
    >>> first, len(list(batches))
    (2, 4)
    """

    def __init__(
        self,
        data: GrowingData,
        batch_size: int | None = None,
        grower: Stages | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(data, GrowingData):
            raise InputError(
                f"data is a {type(data).__name__}; needed is a gr.streams.ProgressiveClasses, ProgressiveData or "
                "ProgressiveSets."
            )
        if grower is not None:
            data.check_stages(grower.plan.num_stages)
            if grower.plan.total_steps is None:
                raise InputError(
                    "the plan does not know the steps of the run, so batches cannot tell when it ends: "
                    "gr.plan(..., total_steps=N), or epochs= with stage_examples=data.sizes."
                )
        self._data, self._grower, self._size = data, grower, batch_size
        generator = torch.Generator().manual_seed(seed)
        self._stream = as_stream(data.whole, "the data", batch_size or 128, generator)
        self.stage = 0
        self.enter(0 if grower is None else grower.stage)

    @classmethod
    def at(cls, data: GrowingData, stage: int, batch_size: int) -> StageBatches:
        """Those of one stage."""
        batches = cls(data, batch_size)
        batches.enter(stage)
        return batches

    def enter(self, stage: int) -> None:
        """Goes on with a stage's data, in a new epoch."""
        if isinstance(stage, bool) or not isinstance(stage, int) or stage < 0:
            raise InputError(f"stage={stage!r}: needed is the number of a stage, from 0 on.")
        self._data.enter(self._stream, stage)
        if self._grower is not None and self._size is None:
            self._stream.set_batch_size(self._grower.plan.batch_sizes[stage])
        self.stage = stage

    @property
    def num_examples(self) -> int:
        """Examples of an epoch of the present stage."""
        return self._stream.num_examples

    def __len__(self) -> int:
        """Batches in an epoch of the present stage."""
        return len(self._stream)

    def __iter__(self) -> Iterator[Batch]:
        if self._grower is None:
            yield from self._stream
            return
        while True:
            before = self._grower.num_steps
            yield from self._rest()
            if self._is_done:
                return
            if self._grower.stage == self.stage and self._grower.num_steps == before:
                raise InputError(
                    "an epoch of batches went by without a Grower.step(): call it once after each "
                    "optimizer.step(), or make the batches without a grower."
                )

    def fork(self, seed: int) -> Iterable[Batch]:
        """One epoch of the present stage's data in an order of its own; this one stays where it is."""
        return self._stream.fork(seed)

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return {"stage": self.stage, "stream": self._stream.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes where `state` was saved: the batches that follow are the same."""
        if set(state) != {"stage", "stream"}:
            raise InputError(
                f"this is not the state of batches of stages: it has {sorted(map(str, state))}, needed are "
                "'stage' and 'stream'."
            )
        self.enter(state["stage"])
        self._stream.load_state_dict(state["stream"])

    @property
    def _is_done(self) -> bool:
        total = self._grower.plan.total_steps if self._grower is not None else None
        return total is not None and self._grower is not None and self._grower.num_steps >= total

    def _rest(self) -> Iterator[Batch]:
        """Batches until the epoch, the stage or the run ends."""
        assert self._grower is not None
        if self._is_done:
            return
        if self._grower.stage != self.stage:
            self.enter(self._grower.stage)
        for batch in self._stream:
            yield batch
            if self._is_done or self._grower.stage != self.stage:
                return
