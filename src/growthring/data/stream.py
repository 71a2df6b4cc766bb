"""BatchStream: epochs of batches in random order that can be left and resumed at any batch.

An epoch's order comes from the generator's state at its start, and each batch's random numbers from the state
after the batch before. Those two states and a position are all that there is to save.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from growthring.data.batch import Batch
from growthring.data.shares import Share
from growthring.errors import InputError

# Draws a batch's random numbers at once and returns the work that is left, given its indices (b,).
Prepare = Callable[[Tensor], Callable[[], Batch]]

_NUMBERS = ("epoch", "position", "batch_size", "num_examples")
_STATES = ("generator_at_epoch_start", "generator")


class BatchStream(ABC):
    """Iterates over the rest of the present epoch; what `Batches` and `FolderBatches` share.

    A loop that was left in mid-epoch is continued by the next one, in this process or, through
    `state_dict`, in another. The epoch ends when a loop runs out of batches; then `epoch` goes up by
    one and the next loop starts a new order. Only the newest loop runs: it ends an older one.

    Args:
        num_examples: how many there are.
        batch_size: examples per batch; the last one may be smaller.
        generator: on the CPU. One seed is drawn from it, for a generator of the stream's own. None:
            evaluation, in the order of the data and without augmentation.
        drop_last: leave out a last batch that is smaller.
    """

    notes: tuple[str, ...] = ()
    _prefetch = 0  # batches whose work is begun before they are asked for
    _part: Share | None = None  # of each batch, that the newest loop hands out
    _cuts_early = False  # whether `_preparing` prepares no more than that

    def __init__(
        self, num_examples: int, batch_size: int, generator: torch.Generator | None, drop_last: bool
    ) -> None:
        if num_examples < 1:
            raise InputError("there are no examples to make batches of.")
        self._num_examples = self._num_whole = num_examples
        self._selected: Tensor | None = (
            None  # indices of the examples that it goes over; all of them
        )
        self._drop_last = drop_last
        self._generator: torch.Generator | None = None
        if generator is not None:
            if generator.device.type != "cpu":
                raise InputError(
                    f"generator is on {generator.device}: the order of the data is drawn on the "
                    "CPU. Pass torch.Generator()."
                )
            seed = int(torch.randint(2**62, (), generator=generator))
            self._generator = torch.Generator().manual_seed(seed)
        self._epoch = 0
        self._position = 0
        self._epoch_start = self._present = self._generator_state()
        self._loop = 0  # number of the newest loop
        self._revision = 0  # goes up when what a loop has prepared is void
        self._batch_size = self._checked_batch_size(batch_size)

    @property
    def batch_size(self) -> int:
        """Examples per batch."""
        return self._batch_size

    @property
    def epoch(self) -> int:
        """How many epochs have ended."""
        return self._epoch

    @property
    def position(self) -> int:
        """How many examples of the present epoch have been handed out."""
        return self._position

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return self._num_examples

    @property
    def part(self) -> float:
        """How much of the present epoch was handed out, 0 to 1."""
        return self._position / self._num_examples

    def __len__(self) -> int:
        """Batches in a whole epoch, at the present batch size."""
        return self._batches_in(self._num_examples, self._batch_size)

    def count_examples(self, batches: Iterable[tuple[int, int]]) -> int:
        """Examples in so many batches of a size each, one after the other from the start of an epoch on.

        With 10 examples, (3, 4) and (2, 6) are batches of 4, 4, 2, 6 and 4.
        """
        total = position = 0
        for count, size in batches:
            left = self._num_examples - position
            if count < (to_end := self._batches_in(left, size)):
                total, position = total + count * size, position + count * size
                continue
            whole, rest = divmod(count - to_end, self._batches_in(self._num_examples, size))
            ends = whole * min(
                self._num_examples, size * self._batches_in(self._num_examples, size)
            )
            total += min(left, to_end * size) + ends + rest * size
            position = rest * size
        return total

    def _batches_in(self, num_examples: int, size: int) -> int:
        whole, rest = divmod(num_examples, size)
        return whole + (1 if rest and not self._drop_last else 0)

    def set_batch_size(self, batch_size: int) -> None:
        """Changes the size from the next batch on, also in mid-epoch: no example is lost or repeated."""
        self._batch_size = self._checked_batch_size(batch_size)
        self._revision += 1

    @property
    def num_whole(self) -> int:
        """How many examples there are in all, whatever it goes over."""
        return self._num_whole

    def select(self, indices: Tensor | None) -> None:
        """Goes over some of the examples from the next batch on, as often as each is named; None for all.

        A new epoch begins with them; what was left of the one before is not handed out. A loop over it ends.

        >>> from growthring.data import DatasetBatches
        >>> batches = DatasetBatches(list(zip(range(9), range(9))), 2, None)
        >>> batches.select(torch.tensor([7, 8, 8]))
        >>> [inputs.tolist() for inputs, targets in batches]
        [[7, 8], [8]]
        """
        count = self._num_whole if indices is None else len(indices)
        if count < 1:
            raise InputError("there are no examples to make batches of.")
        if (
            indices is not None
            and not 0 <= int(indices.min()) <= int(indices.max()) < self._num_whole
        ):
            raise InputError(
                f"examples {int(indices.min())} to {int(indices.max())} were chosen of {self._num_whole}."
            )
        before = self._num_examples
        self._num_examples = count
        try:
            self._checked_batch_size(self._batch_size)
        except InputError:
            self._num_examples = before
            raise
        self._selected = indices
        self._epoch += self._position > 0
        self._position, self._epoch_start = 0, self._present
        self._loop += 1  # the newest loop ends

    def rewind(self) -> None:
        """Goes back to the start of the present epoch: the same batches come again."""
        self._position, self._present = 0, self._epoch_start
        self._revision += 1

    def fork(self, seed: int) -> BatchStream:
        """Another stream over the same data, at its start, in an order of its own; this one stays where it is."""
        twin = copy.copy(self)
        if self._generator is not None:
            twin._generator = torch.Generator().manual_seed(seed)
        twin._epoch = twin._position = 0
        twin._epoch_start = twin._present = twin._generator_state()
        return twin

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is, after the last batch that was handed out: whole numbers and tensors."""
        state: dict[str, Any] = {
            "epoch": self._epoch,
            "position": self._position,
            "batch_size": self._batch_size,
            "num_examples": self._num_examples,
        }
        if self._generator is not None:
            state["generator_at_epoch_start"] = self._epoch_start.clone()
            state["generator"] = self._present.clone()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes where `state` was saved: the batches that follow are the same, bit by bit."""
        expected = {*_NUMBERS, *(_STATES if self._generator is not None else ())}
        if set(state) != expected:
            raise InputError(
                f"this is not the state of such a stream: it has {sorted(state)}, "
                f"needed are {sorted(expected)}. Training streams have a generator, others do not."
            )
        numbers = [state[key] for key in _NUMBERS]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise InputError(f"{', '.join(_NUMBERS)} must be whole numbers, got {numbers}.")
        epoch, position, batch_size, num_examples = numbers
        if num_examples != self._num_examples or position > num_examples:
            raise InputError(
                f"the state is at example {position} of {num_examples}, but this data has "
                f"{self._num_examples}. Resume with the data that the run began with."
            )
        batch_size = self._checked_batch_size(batch_size)
        if self._generator is not None:
            states = [_checked_generator_state(key, state[key]) for key in _STATES]
            self._epoch_start, self._present = states
        self._epoch, self._position, self._batch_size = epoch, position, batch_size
        self._revision += 1

    def __iter__(self) -> Iterator[Batch]:
        return self._begin_loop(None)

    def slices(self, share: Share) -> Iterator[Batch]:
        """The rest of the present epoch, of each batch a share; random numbers are drawn for the whole batch."""
        return self._begin_loop(share)

    def _begin_loop(self, share: Share | None) -> Iterator[Batch]:
        self._loop, self._part = self._loop + 1, share
        return self._run(self._loop)

    @abstractmethod
    def _preparing(self) -> AbstractContextManager[Prepare]:
        """Opens what a loop needs (threads), and gives the function that prepares its batches."""

    def _run(self, loop: int) -> Iterator[Batch]:
        pending: deque[tuple[Callable[[], Batch], int, Tensor]] = deque()
        revision, drawn, order = -1, 0, torch.empty(0)
        with self._preparing() as prepare:
            while loop == self._loop:
                if revision != self._revision:
                    pending.clear()
                    revision, drawn, order = self._revision, self._position, self._begin()
                while len(pending) <= self._prefetch and (stop := self._stop(drawn)) > drawn:
                    finish = prepare(order[drawn:stop])
                    pending.append((finish, stop, self._generator_state()))
                    drawn = stop
                if not pending:
                    self._epoch += 1
                    self._position, self._epoch_start = 0, self._present
                    return
                finish, stop, after = pending[0]
                batch = finish()  # where this fails, the stream stays before this batch
                pending.popleft()
                self._position, self._present = stop, after
                share = None if self._cuts_early else self._part
                yield batch if share is None else share.cut(batch)

    def _begin(self) -> Tensor:
        """The order (n,) of the present epoch; the generator is then ready for the next batch."""
        if self._generator is None:
            return self._order()
        self._generator.set_state(self._epoch_start)
        order = self._order()
        if self._position:
            self._generator.set_state(self._present)
        return order

    def _order(self) -> Tensor:
        """The order (n,) of an epoch, drawn from the generator; that of the data where there is none."""
        if self._generator is None:
            order = torch.arange(self._num_examples)
        else:
            order = torch.randperm(self._num_examples, generator=self._generator)
        return order if self._selected is None else self._selected[order]

    def _stop(self, start: int) -> int:
        """Where the batch that starts there ends; `start` itself if there is none."""
        stop = start + self._batch_size
        if stop <= self._num_examples:
            return stop
        return start if self._drop_last else self._num_examples

    def _generator_state(self) -> Tensor:
        if self._generator is None:
            return torch.empty(0, dtype=torch.uint8)
        return self._generator.get_state()

    def _checked_batch_size(self, batch_size: int) -> int:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size={batch_size!r}: must be a whole number, at least 1.")
        if self._drop_last and batch_size > self._num_examples:
            raise InputError(
                f"batch_size={batch_size} with drop_last leaves no batch of {self._num_examples} examples. "
                "Take a smaller one, or drop_last=False."
            )
        return batch_size


class AugmentedStream(BatchStream):
    """A stream that changes examples at random when it is for training: all of them, or a share."""

    _share = 1.0

    def augment(self, share: float) -> None:
        """Changes a share (0 to 1) of the examples from the next batch on; the others are as in evaluation."""
        self._share = share
        self._revision += 1

    def _chosen(self, n: int) -> Tensor | None:
        """Which of n examples are changed (n,), drawn from the generator; None for all."""
        if self._share == 1 or self._generator is None:
            return None
        return torch.rand(n, generator=self._generator) < self._share


def _checked_generator_state(key: str, state: object) -> Tensor:
    try:
        return torch.Generator().set_state(state).get_state()  # type: ignore[arg-type]
    except (TypeError, RuntimeError) as error:
        raise InputError(f"'{key}' is not the state of a torch.Generator: {error}") from error
