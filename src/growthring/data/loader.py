"""LoaderBatches: the batches of a user's own DataLoader, resumed by going over the epoch once more.

A DataLoader cannot say where it is. What decides an epoch's order is the state of its generators, and of those that
everybody shares, when the epoch begins. With these put back, the batches that a run has had come again and are
passed over; the next one is the one that it would have had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from growthring.data.anatomy import (
    check_loader,
    doubt_about,
    generators_of,
    holders_of,
    length_of,
)
from growthring.data.batch import Batch, checked_batch, examples_in, first_examples
from growthring.data.randomness import (
    check_shared_random,
    seed_shared_random,
    set_shared_random,
    shared_random,
)
from growthring.data.selecting import loader_over
from growthring.errors import InputError

_NUMBERS = ("epoch", "position", "examples", "num_examples", "num_batches")


class LoaderBatches:
    """Epochs of a loader's own batches; where it is can be saved, and found again.

    An epoch is gone over again from its start, without training on what comes before that place. Where it cannot be
    told that the same batches come (an iterable data set, a sampler of the user's own), a loader that has
    `state_dict` and `load_state_dict`, such as torchdata's StatefulDataLoader, is asked for its place; and `notes`
    says so. `set_epoch` of samplers and data sets is called before each epoch.

    Args:
        loader: a DataLoader, or anything else that gives (inputs, targets) each time it is iterated over.
        name: for messages.
        is_training: whether its length is needed, as learning rates follow from it.

    Attributes:
        first: its first two examples.
        has_one_size: whether it says how large its batches are; the last of an epoch may be smaller.
        notes: why a resumed run may not go on bit for bit, if that is so; what was found in an epoch.

    Raises:
        InputError: it gives nothing, or no such pairs; or can be gone over only once, or has no length.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> def loader(seed):
    ...     generator = torch.Generator().manual_seed(seed)
    ...     data = TensorDataset(torch.randn(5, 3), torch.arange(5))
    ...     return DataLoader(data, 2, shuffle=True, generator=generator)
    >>> batches = LoaderBatches(loader(0))
    >>> left = next(iter(batches))  # a loop that is left ...
    >>> resumed = LoaderBatches(loader(1))
    >>> resumed.load_state_dict(batches.state_dict())
    >>> [y.tolist() for x, y in batches] == [
    ...     y.tolist() for x, y in resumed
    ... ]  # ... goes on, anywhere
    True
    """

    def __init__(
        self, loader: Iterable[Any], name: str = "train", is_training: bool = True
    ) -> None:
        check_loader(loader, name)
        self._loader: Any = loader
        self._whole: Any = loader  # over all examples
        self._selection = 0  # goes up when others are chosen
        self._name = name
        self._generators = generators_of(loader)
        doubt = doubt_about(loader)
        has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._keeps_place = has_state and doubt is not None
        self._is_alone = doubt is not None  # whether a second pass may disturb the one at work
        self._revision = 0  # goes up when it did
        self._epoch = self._position = self._examples = 0
        self._is_counted = False  # whether an epoch's batches were
        self._num_batches = length_of(loader, name) if is_training else 0
        batch = self._peek()
        size = examples_in(batch)
        own = getattr(loader, "batch_size", None)
        self._batch_size = own if isinstance(own, int) else size
        self.has_one_size = isinstance(own, int)
        self._num_examples = self._num_batches * size  # until an epoch was counted
        self._start = self._random()  # of the present epoch
        self.first = first_examples(batch, 2)
        self.notes: tuple[str, ...] = ()
        if doubt is not None and is_training:
            how = f"with the batches that {name} then gives"
            how = "as its own state_dict says" if has_state else how
            self.notes = (
                f"a resumed run may not go on bit for bit: {doubt}. It goes on where it was, {how}.",
            )

    @property
    def batch_size(self) -> int:
        """Examples per batch, as the loader says; or else in its first one."""
        return self._batch_size

    @property
    def num_examples(self) -> int:
        """Examples of the last epoch; in the first one, what its length and its first batch come to."""
        return self._num_examples

    @property
    def part(self) -> float:
        """How much of the present epoch was handed out, 0 to 1, as far as the loader's length tells."""
        return self._position / max(self._num_batches, self._position, 1)

    def __len__(self) -> int:
        """Batches in an epoch, as the loader says."""
        return self._num_batches

    def count_examples(self, batches: Iterable[tuple[int, int]]) -> int:
        """Examples in so many batches; their sizes are the loader's own."""
        whole, rest = divmod(sum(count for count, _ in batches), max(self._num_batches, 1))
        return whole * self._num_examples + rest * self._batch_size

    def set_batch_size(self, batch_size: int) -> None:
        """Nothing: batches are as the loader makes them."""

    def __iter__(self) -> Iterator[Batch]:
        batches, revision, selection = self._begin(), self._revision, self._selection
        while (batch := next(batches, self)) is not self:
            pair = checked_batch(batch, self._name)
            self._position += 1
            self._examples += examples_in(pair)
            yield pair
            if selection != self._selection:
                return
            if revision != self._revision:
                batches, revision = self._begin(), self._revision
        if not self._is_counted and self._num_batches not in (0, self._position):
            self.notes += (
                f"{self._name} gave {self._position} batches in an epoch, but its length is {self._num_batches}: "
                "learning rates and fading follow the length. Give the loader the right one.",
            )
        self._num_examples, self._is_counted = self._examples, True
        self._epoch, self._position, self._examples = self._epoch + 1, 0, 0

    def select(self, indices: Tensor | None) -> None:
        """Goes over some of the data set's examples from the next batch on, as `BatchStream.select`.

        Raises:
            InputError: they cannot be chosen of this loader's.
        """
        self.use(self._whole if indices is None else loader_over(self._whole, indices))
        if indices is not None:
            self._num_examples = len(indices)

    def use(self, loader: Iterable[Any]) -> None:
        """Goes over another loader's batches from the next one on, in a new epoch. A loop over it ends.

        Raises:
            InputError: it can be gone over only once, or has no length.
        """
        check_loader(loader, self._name)
        self._num_batches = length_of(loader, self._name)
        self._loader, self._generators = loader, generators_of(loader)
        self._epoch += self._position > 0
        self._position = self._examples = 0
        own = getattr(loader, "batch_size", None)
        self._batch_size = own if isinstance(own, int) else self._batch_size
        self._num_examples, self._is_counted = self._num_batches * self._batch_size, False
        self._selection += 1
        self._start = self._random()

    def fork(self, seed: int) -> Iterable[Batch]:
        """The loader's batches in an order of that seed, the same each time; the loader is then as it was."""
        return _Fork(self, seed)

    def in_order_of(self, seed: int) -> Iterator[Batch]:
        """One pass over the loader's batches, with all random numbers from a seed; they are then as they were."""
        with self._kept():
            seed_shared_random(seed)
            for generator in self._generators:
                generator.manual_seed(seed)
            for batch in self._loader:
                yield checked_batch(batch, self._name)

    def state_dict(self) -> dict[str, Any]:
        """Where it is: numbers, the random states at the epoch's start, the loader's own state if it has one."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "examples": self._examples,
            "num_examples": self._num_examples,
            "num_batches": self._num_batches,
            "start": self._start if self._position else self._random(),
            "loader": self._loader.state_dict() if self._keeps_place else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes where `state` was saved."""
        if set(state) != {*_NUMBERS, "start", "loader"}:
            raise InputError(
                f"this is not the state of a loader: it has {sorted(map(str, state))}. Resume with the kind of "
                "data that the run began with."
            )
        numbers = [state[key] for key in _NUMBERS]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise InputError(f"{', '.join(_NUMBERS)} must be whole numbers, got {numbers}.")
        if state["num_batches"] != self._num_batches:
            raise InputError(
                f"the run began with {state['num_batches']} batches an epoch, {self._name} has "
                f"{self._num_batches}. Resume with the data and the batch size that it began with."
            )
        self._check_start(state["start"])
        if self._keeps_place:
            self._loader.load_state_dict(state["loader"])
        self._epoch, self._position, self._examples, self._num_examples, _ = numbers
        self._start = state["start"]
        self._set_generators(state["start"]["generators"])

    def _begin(self) -> Iterator[Any]:
        """The batches that are left of the present epoch."""
        for holder in holders_of(self._loader):
            if callable(set_epoch := getattr(holder, "set_epoch", None)):
                set_epoch(self._epoch)
        if self._position == 0:
            self._start = self._random()
        if self._position == 0 or self._keeps_place:
            return iter(self._loader)
        now = shared_random()  # what dropout has drawn since belongs to it
        set_shared_random(self._start["shared"])
        self._set_generators(self._start["generators"])
        batches = iter(self._loader)
        for taken in range(self._position):
            if next(batches, self) is self:
                raise InputError(
                    f"the run has had {self._position} batches of this epoch, but {self._name} gives only {taken}. "
                    "Resume with the data that it began with."
                )
        set_shared_random(now)
        return batches

    def _peek(self) -> Batch:
        """The first batch; everything is then as it was."""
        with self._kept():
            seed_shared_random(0)  # so that what the plan is made with depends on nothing else
            for batch in self._loader:
                return checked_batch(batch, self._name)
        raise InputError(
            f"{self._name} gives no batch: there are no examples, or fewer than one batch with drop_last."
        )

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Leaves the loader and all random numbers as they were."""
        before = self._random()
        place = self._loader.state_dict() if self._keeps_place else None
        try:
            yield
        finally:
            set_shared_random(before["shared"])
            self._set_generators(before["generators"])
            self._revision += self._is_alone
            if self._keeps_place:
                self._loader.load_state_dict(place)

    def _random(self) -> dict[str, Any]:
        """What decides the batches of an epoch that begins now."""
        states = [generator.get_state() for generator in self._generators]
        return {"shared": shared_random(), "generators": states}

    def _set_generators(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    def _check_start(self, start: Any) -> None:
        if not isinstance(start, Mapping) or set(start) != {"shared", "generators"}:
            raise InputError("the state of the loader does not say how its epoch began.")
        check_shared_random(start["shared"])
        if len(start["generators"]) != len(self._generators):
            raise InputError(
                f"{self._name} draws from {len(self._generators)} generators of its own, in the run it was "
                f"{len(start['generators'])}. Resume with the loader that it began with."
            )
        for state in start["generators"]:
            check_shared_random({"torch": state})


@dataclass(frozen=True)
class _Fork:
    """A loader's batches in the order of a seed, each time that it is iterated over."""

    batches: LoaderBatches
    seed: int

    def __iter__(self) -> Iterator[Batch]:
        return self.batches.in_order_of(self.seed)
