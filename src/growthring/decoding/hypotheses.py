"""The beam search of one sentence: what is alive, what has ended, and when nothing can get better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from growthring.decoding.checks import Task


@dataclass(frozen=True)
class Hypothesis:
    """A translation.

    Attributes:
        tokens: without bos and eos.
        score: `log_prob` over a power of the length: what hypotheses are ranked by.
        log_prob: sum of the tokens' log-probabilities, that of eos included.
        is_cut: it reached the greatest length, where only eos may follow.
    """

    tokens: list[int]
    score: float
    log_prob: float
    is_cut: bool


class Row(NamedTuple):
    """A prefix that lives on: one of the sentence's present rows, and a token after it."""

    log_prob: float
    parent: int
    token: int


class SentenceSearch:
    """Beam search for one sentence.

    Of all continuations of the live prefixes, those with eos among the `beam` most probable have ended; the
    `beam` most probable without eos live on. The search is over when `beam` hypotheses have ended and no live
    one is better than the best of them at its present length; or when none can become better. To count those that
    have ended is not enough: where a model is sure, the other continuations are noise, and eos comes among them.
    With one beam there are no others, and the search ends where greedy decoding does.

    Args:
        task: what is translated.
        limit: most tokens, eos not counted; then only eos may follow.
        beam: how many prefixes live.

    Attributes:
        best: the best hypothesis that has ended.
    """

    def __init__(self, task: Task, limit: int, beam: int) -> None:
        self.limit = limit
        self.best: Hypothesis | None = None
        self._task, self._beam = task, beam
        self._live: list[tuple[list[int], float]] = [([], 0.0)]  # tokens, log-probability
        self._num_ended = 0

    def advance(self, values: list[list[float]], tokens: list[list[int]]) -> list[Row]:
        """Takes the best continuations of each row and returns the `beam` rows that go on: none at the end.

        Args:
            values: log-probabilities of the 2 · beam most probable tokens after each row. With so many, those
                with eos, one of each row, push out no other.
            tokens: which tokens those are.
        """
        ranked = self._ranked(values, tokens)
        for row in ranked[: self._beam]:
            if row.token == self._task.eos:
                self._end(self._live[row.parent][0], row.log_prob)
        going = [row for row in ranked if row.token != self._task.eos][: self._beam]
        if not ranked and self.best is None:  # the model allows neither eos nor anything else
            self._end(self._live[0][0], -math.inf)
        if not going or self._is_over(going[0].log_prob):
            return []
        self._live = [([*self._live[row.parent][0], row.token], row.log_prob) for row in going]
        # A batch has as many rows for each sentence; nothing ever follows these.
        return going + [Row(-math.inf, 0, self._task.eos)] * (self._beam - len(going))

    def _ranked(self, values: list[list[float]], tokens: list[list[int]]) -> list[Row]:
        """All continuations that are possible, the most probable first; of equal ones those of better rows."""
        rows = [
            Row(before + value, parent, token)
            for parent, ((_, before), *found) in enumerate(
                zip(self._live, values, tokens, strict=False)  # idle rows come last
            )
            for value, token in zip(*found, strict=True)
            if value > -math.inf
        ]
        return sorted(rows, key=lambda row: (-row.log_prob, row.parent, row.token))

    def _end(self, tokens: list[int], log_prob: float) -> None:
        self._num_ended += 1
        score = self._task.score(log_prob, len(tokens))
        # Of equal ones the first stays: an earlier one, or one that was ranked before.
        if self.best is None or score > self.best.score:
            self.best = Hypothesis(tokens, score, log_prob, len(tokens) == self.limit)

    def _is_over(self, log_prob: float) -> bool:
        """Whether prefixes of one token more, at most so probable, need not be followed."""
        if self.best is None:
            return False
        has_enough = self._num_ended >= self._beam and (
            self._beam == 1 or self._is_behind(self.best, log_prob, self._length)
        )
        return has_enough or self._cannot_win(self.best, log_prob)

    def _cannot_win(self, best: Hypothesis, log_prob: float) -> bool:
        # A log-probability only falls; the length at which it counts most is the shortest or the longest.
        return all(self._is_behind(best, log_prob, n) for n in (self._length, self.limit))

    def _is_behind(self, best: Hypothesis, log_prob: float, length: int) -> bool:
        return best.score >= self._task.score(log_prob, length)

    @property
    def _length(self) -> int:
        """Of the prefixes that would live next."""
        return len(self._live[0][0]) + 1
