"""Forgetting: what a run on growing data knew of its old classes, and knows no more."""

from __future__ import annotations

from collections.abc import Sequence

from growthring.runs.records import StageRecord

DEFINITION = (
    "Forgetting, in points of accuracy: of the classes that each earlier stage brought, the best accuracy on them "
    "before the last stage, less that at its end; the mean over those stages. Below 0, old classes are known "
    "better at the end."
)


def forgetting(stages: Sequence[StageRecord]) -> float | None:
    """Mean over the classes that earlier stages brought: the best accuracy before the last stage, less the last.

    With A[t, k] the accuracy at the end of stage t on the classes that stage k brought, and T the last stage, it
    is the mean over k < T of max_{k <= t < T} A[t, k] - A[T, k] (Chaudhry et al., ECCV 2018). It is negative where
    old classes are known better at the end. None where there is nothing old.

    >>> first = StageRecord(0, parts=(0.9,))
    >>> round(forgetting([first, StageRecord(1, parts=(0.6, 0.8))]), 3)
    0.3
    >>> forgetting([first]) is None
    True
    """
    if len(stages) < 2:
        return None
    *before, last = stages
    lost = []
    for k, now in enumerate(last.parts[: last.stage]):
        known = [s.parts[k] for s in before if k < len(s.parts)]
        best = max((value for value in known if value is not None), default=None)
        if now is not None and best is not None:
            lost.append(best - now)
    return sum(lost) / len(lost) if lost else None
