"""SentenceBatches: batches of sentence pairs of like lengths, each of about as many tokens; they resume anywhere.

Sentences are put into buckets by the longer one of a pair, and a batch is filled from one bucket, so little of it
is padding. A batch of a bucket has as many sentences as make the batch's number of tokens at the bucket's length:
how many batches an epoch has does not depend on its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from growthring.core.wording import counted
from growthring.data.batch import Batch
from growthring.data.errors import DataError
from growthring.data.pairs import Pairs
from growthring.data.stream import BatchStream, Prepare
from growthring.data.vocabulary import BOS, EOS, PAD, Vocabulary
from growthring.errors import InputError

IGNORED = -100  # a target that torch's cross entropy passes over: padding
_BLOCK = 4  # batches of one bucket that stay together in an epoch's order, so that a stage may have larger ones


@dataclass(frozen=True)
class Ragged:
    """Lists of whole numbers of different lengths: all numbers (n,), and where each list ends (count + 1,)."""

    values: Tensor
    ends: Tensor

    @staticmethod
    def of(lists: Sequence[Sequence[int]]) -> Ragged:
        """Of lists.

        >>> ragged = Ragged.of([[1, 2, 3], [], [4]])
        >>> ragged.lengths.tolist(), ragged.padded(torch.tensor([2, 0]), fill=0).tolist()
        ([3, 0, 1], [[4, 0, 0], [1, 2, 3]])
        """
        values = torch.tensor([value for one in lists for value in one], dtype=torch.int32)
        lengths = torch.tensor([0, *(len(one) for one in lists)], dtype=torch.int64)
        return Ragged(values, lengths.cumsum(0))

    @property
    def lengths(self) -> Tensor:
        """Of each list (count,)."""
        return self.ends.diff()

    def padded(self, indices: Tensor, fill: int) -> Tensor:
        """Some of the lists (b, longest), int64, filled up at their ends."""
        starts, lengths = self.ends[indices], self.lengths[indices]
        places = torch.arange(int(lengths.max()))
        at = (starts[:, None] + places).clamp_max(max(len(self.values) - 1, 0))
        is_there = places < lengths[:, None]
        return torch.where(is_there, self.values[at].long(), fill)


@dataclass(frozen=True)
class SentenceData:
    """Sentence pairs as tokens: sources end with EOS, targets begin with BOS and end with EOS.

    Attributes:
        name: in messages.
        sources, targets: the tokens.
        pairs: the texts of the same sentences.
        vocabulary: that made the tokens.
        max_length: most tokens that a sentence could have.
        notes: what was left out or cut, in sentences.
    """

    name: str
    sources: Ragged
    targets: Ragged
    pairs: Pairs
    vocabulary: Vocabulary
    max_length: int
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.pairs)


def encode_pairs(
    pairs: Pairs, vocabulary: Vocabulary, max_length: int, is_training: bool
) -> SentenceData:
    """Sentence pairs as tokens.

    Args:
        pairs: the texts.
        vocabulary: makes tokens of them.
        max_length: most tokens of a sentence, its end included. Of training data, longer pairs are left out; of
            test data they are cut, so that every model is judged by the same sentences.
        is_training: which of the two.

    Raises:
        DataError: nothing is left.
    """
    sources = [[*s, EOS] for s in vocabulary.encode_all(pairs.sources)]
    targets = [[BOS, *t, EOS] for t in vocabulary.encode_all(pairs.targets)]
    fits = [
        len(s) <= max_length and len(t) <= max_length for s, t in zip(sources, targets, strict=True)
    ]
    long = fits.count(False)
    notes = pairs.notes
    if long and is_training:
        kept = [i for i, fit in enumerate(fits) if fit]
        if not kept:
            raise DataError(
                f"all sentences of '{pairs.name}' are longer than max_length={max_length} tokens: take more."
            )
        pairs = Pairs(
            pairs.name, [pairs.sources[i] for i in kept], [pairs.targets[i] for i in kept]
        )
        sources, targets = [sources[i] for i in kept], [targets[i] for i in kept]
    if long:
        what = "left out" if is_training else "cut"
        notes += (
            f"{counted(long, 'pair')} of '{pairs.name}' longer than max_length={max_length} tokens {what}.",
        )
    if long and not is_training:
        sources = [[*s[: max_length - 1], EOS] if len(s) > max_length else s for s in sources]
        targets = [[*t[: max_length - 1], EOS] if len(t) > max_length else t for t in targets]
    return SentenceData(
        pairs.name, Ragged.of(sources), Ragged.of(targets), pairs, vocabulary, max_length, notes
    )


class SentenceBatches(BatchStream):
    """Epochs of ((source (b, s), target (b, t), source padding (b, s)), next target token (b, t)).

    Padding is PAD in the inputs, True in the padding mask and IGNORED in what is to be predicted.

    >>> pairs = Pairs("two", ["ein Hund", "eine Katze"], ["a dog", "a cat"])
    >>> from growthring.data.vocabulary import train_vocabulary
    >>> vocabulary = train_vocabulary([*pairs.sources, *pairs.targets], 300)
    >>> data = encode_pairs(pairs, vocabulary, 50, is_training=True)
    >>> (source, target, padding), following = next(iter(SentenceBatches(data, 2, None)))
    >>> bool((target[:, 1:] == following[:, :-1]).all()), target[:, 0].tolist()
    (True, [1, 1])

    Args:
        data: the sentences.
        batch_size: sentences per batch on the average: all batches have about as many tokens as so many sentences
            of mean length, so that of short ones there are more.
        generator: as for `BatchStream`; None: by length, for evaluation.
        device: where the batches go.
    """

    def __init__(
        self,
        data: SentenceData,
        batch_size: int,
        generator: torch.Generator | None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        self.data = data
        self.device = torch.device("cpu" if device is None else device)
        longest = torch.maximum(data.sources.lengths, data.targets.lengths - 1)
        self._widths = _bucket_widths(longest)  # (n,): what a sentence may be padded to
        self._mean = float(self._widths.double().mean())
        widths, counts = self._widths.unique(return_counts=True)
        self._buckets = list(zip(widths.tolist(), counts.tolist(), strict=True))
        self._base = batch_size
        super().__init__(len(data), batch_size, generator, False)
        self.notes = data.notes

    def __len__(self) -> int:
        return self._batches_at(self._batch_size)

    def count_examples(self, batches: Iterable[tuple[int, int]]) -> int:
        """Sentences in so many batches of a size each, as many as there are on the average.

        Which batches a part of an epoch has depends on its order, so this is exact for whole epochs.
        """
        counts = ((count, self._batches_at(size)) for count, size in batches)
        return round(sum(count * self._num_examples / whole for count, whole in counts))

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is, and of which vocabulary."""
        return {**super().state_dict(), "vocabulary": self.data.vocabulary.fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes where `state` was saved, if that was with this vocabulary."""
        own = self.data.vocabulary.fingerprint
        if state.get("vocabulary", own) != own:
            raise InputError(
                f"the run was begun with another vocabulary ({state['vocabulary']}, this one is {own}): its tokens "
                "mean other words. Resume with the data and the task_options that the run began with."
            )
        super().load_state_dict({key: v for key, v in state.items() if key != "vocabulary"})

    def select(self, indices: Tensor | None) -> None:
        """Refused, but for all: they are no examples that stand for themselves."""
        if indices is not None:
            raise InputError(f"{type(self).__name__}: its examples cannot be chosen one by one.")
        super().select(None)

    def _preparing(self) -> AbstractContextManager[Prepare]:
        return nullcontext(self._prepare)

    def _prepare(self, indices: Tensor) -> Callable[[], Batch]:
        def finish() -> Batch:
            source = self.data.sources.padded(indices, PAD)
            target = self.data.targets.padded(indices, PAD)
            following = self.data.targets.padded(indices, IGNORED)[:, 1:]
            parts = (source, target[:, :-1], source == PAD, following)
            source, target, padding, following = (part.to(self.device) for part in parts)
            return (source, target, padding), following

        return finish

    def _order(self) -> Tensor:
        """Blocks of some batches, each of one bucket and in random order, as are the blocks."""
        order = super()._order()
        blocks = list(order[self._widths[order].argsort(stable=True)].split(self._block_sizes()))
        if self._generator is not None:
            mixed = torch.randperm(len(blocks), generator=self._generator).tolist()
            blocks = [blocks[i] for i in mixed]
        self._block_ends = torch.tensor([len(block) for block in blocks]).cumsum(0)
        self._block_widths = [int(self._widths[block[0]]) for block in blocks]
        return torch.cat(blocks)

    def _stop(self, start: int) -> int:
        if start >= self._num_examples:
            return start
        block = int(torch.searchsorted(self._block_ends, start, right=True))
        size = self._sentences(self._block_widths[block], self._batch_size)
        return min(start + size, int(self._block_ends[block]))

    def _block_sizes(self) -> list[int]:
        """Sentences of each block, buckets from the narrowest on."""
        sizes = []
        for width, count in self._buckets:
            whole, rest = divmod(count, _BLOCK * self._sentences(width, self._base))
            sizes += [_BLOCK * self._sentences(width, self._base)] * whole + (
                [rest] if rest else []
            )
        return sizes

    def _batches_at(self, batch_size: int) -> int:
        """Batches of an epoch."""
        sizes = iter(self._block_sizes())
        total = 0
        for width, count in self._buckets:
            while count > 0:
                block = next(sizes)
                total += -(-block // self._sentences(width, batch_size))
                count -= block
        return total

    def _sentences(self, width: int, batch_size: int) -> int:
        """How many sentences of a bucket make a batch."""
        return max(1, round(batch_size * self._mean / width))

    def _checked_batch_size(self, batch_size: int) -> int:
        checked = super()._checked_batch_size(batch_size)
        if checked > _BLOCK * self._base:
            raise InputError(
                f"batch_size={checked}: of sentences it can be up to {_BLOCK} times that of the last stage "
                f"({self._base}), as batches are made of sentences of one length."
            )
        return checked


def _bucket_widths(lengths: Tensor) -> Tensor:
    """What sentences (n,) are padded to at the most: an eighth more, and even.

    >>> _bucket_widths(torch.tensor([1, 9, 10, 33, 70])).tolist()
    [2, 10, 10, 36, 72]
    """
    step = (2 ** (lengths.clamp_min(1).double().log2().floor() - 3)).clamp_min(2).long()
    return -(-lengths // step) * step
