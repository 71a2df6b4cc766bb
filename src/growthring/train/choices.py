"""Choices: which stages of a run are compiled, chosen before the first step and kept for who resumes the run.

Compiling a stage takes as long as thousands of small steps, and what it saves differs between networks. So a stage
is compiled on trial only where that can be expected to pay by what other stages have shown, and it stays compiled
where it was measured to pay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, get_type_hints

import torch

from growthring.errors import InputError
from growthring.graph.isolation import kept_random
from growthring.planning.compiling import Backend
from growthring.planning.plan import Plan
from growthring.planning.timing import clock_of, turns
from growthring.train.compiling import Precision, Twin, first_line
from growthring.train.kinds import fits

MODES = ("auto", "always", "never")
_RATIO = 0.8  # of a compiled pass to a plain one, and
_SECONDS = 45.0  # of compiling a stage, as long as nothing was measured: see docs/compile.md
_LOADED = (
    0.1  # of these seconds once more, when the stage comes and its programs are read from the disk
)
_TURNS = 3


def mode_of(setting: bool | str) -> str:
    """The mode that a recipe's `compile` stands for.

    Raises:
        InputError: there is no such mode.

    >>> mode_of(True), mode_of(False), mode_of("auto")
    ('always', 'never', 'auto')
    """
    mode = setting
    if isinstance(setting, bool):
        mode = "always" if setting else "never"
    if mode not in MODES:
        raise InputError(
            f"compile={setting!r}: choose 'auto' (the stages where it is measured to pay), 'always' or 'never'."
        )
    return str(mode)


@dataclass(frozen=True)
class Choice:
    """Whether a stage is compiled.

    Attributes:
        stage: which one.
        is_compiled: whether it is.
        reason: in words.
        seconds: that compiling it took.
        ratio: of a compiled forward and backward pass to a plain one, where both were measured.
    """

    stage: int
    is_compiled: bool
    reason: str
    seconds: float = 0.0
    ratio: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    def __str__(self) -> str:
        return f"stage {self.stage} is {'' if self.is_compiled else 'not '}compiled: {self.reason}"


def choices_of(stored: Any, num_stages: int) -> list[Choice]:
    """Choices as a checkpoint has them.

    Raises:
        ValueError: they are not of a plan of so many stages.

    >>> choices_of([Choice(0, True, "asked for").as_dict()], 1)
    [Choice(stage=0, is_compiled=True, reason='asked for', seconds=0.0, ratio=None)]
    """
    kinds, names = get_type_hints(Choice), {f.name for f in fields(Choice)}
    if not isinstance(stored, list) or not all(isinstance(one, Mapping) for one in stored):
        raise ValueError("what is compiled is no list of choices")
    for one in stored:
        if set(one) != names or not all(fits(one[name], kinds[name]) for name in names):
            raise ValueError(f"a choice of what is compiled is {dict(one)!r:.80}")
    stages = [one["stage"] for one in stored]
    if len(set(stages)) != len(stages) or not set(stages) <= set(range(num_stages)):
        raise ValueError(f"stages {stages} are chosen to be compiled or not, out of {num_stages}")
    return [Choice(**one) for one in stored]


class Trial(Protocol):
    """What is tried on a stage."""

    def plain(self, stage: int) -> float:
        """Seconds of a forward and a backward pass, not compiled."""

    def compiled(self, stage: int) -> tuple[float, float, float]:
        """Seconds of compiling; of a pass, plain and compiled."""


class TwinTrial:
    """Tries on throwaway models.

    Args:
        plan: of all stages.
        device: where they are trained.
        precision: the arithmetic that they run in.
        backend: of `torch.compile`.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        precision: Precision,
        backend: Backend = "inductor",
    ) -> None:
        self._plan, self._device, self._precision = plan, device, precision
        self._backend = backend

    def plain(self, stage: int) -> float:
        """See `Trial`."""
        with kept_random():
            twin = self._twin(stage)
            twin.run()  # warms up
            return _median(turns([twin.run], _TURNS, self._clock)[0])

    def compiled(self, stage: int) -> tuple[float, float, float]:
        """See `Trial`."""
        with kept_random():
            twin = self._twin(stage)
            started = time.perf_counter()
            twin.compile(self._backend)
            seconds = time.perf_counter() - started
            twin.run()
            plain, compiled = turns([twin.run, twin.run_compiled], _TURNS, self._clock)
            twin.drop()
        return seconds, _median(plain), _median(compiled)

    @property
    def _clock(self) -> Callable[[], float]:
        return clock_of(self._plan.model)

    def _twin(self, stage: int) -> Twin:
        return Twin(self._plan, stage, self._device, self._precision)


def choose(steps: Mapping[int, int], trial: Trial) -> list[Choice]:
    """Which stages are compiled, by what that is measured to save.

    Args:
        steps: of each stage that is left, those that would run compiled.
        trial: measures.
    """
    try:
        plain = {stage: trial.plain(stage) for stage in steps}
    except Exception as error:  # the user's own code, on values that mean nothing
        return [
            Choice(s, False, f"a pass of it cannot be measured: {first_line(error)}") for s in steps
        ]
    found: dict[int, Choice] = {}
    ratio, needed, is_known = _RATIO, _SECONDS, False
    for stage in sorted(steps, key=lambda s: -steps[s] * plain[s]):  # where most is to be gained
        saved = steps[stage] * plain[stage] * (1 - ratio)
        if saved <= needed:
            by = "by what others showed" if is_known else "at the usual gain"
            reason = f"{by}, its {steps[stage]} steps would save {saved:.0f} s and it would take {needed:.0f} s"
            found[stage] = Choice(stage, False, reason)
            continue
        try:
            needed, *both = trial.compiled(stage)
        except Exception as error:  # torch.compile fails in many ways
            reason = f"torch.compile fails: {first_line(error)}"
            found |= {s: Choice(s, False, reason) for s in steps if s not in found}
            break
        is_known, ratio = True, both[1] / both[0]
        saved = steps[stage] * (both[0] - both[1])
        reason = (
            f"a pass takes {ratio:.2f} of a plain one, its {steps[stage]} steps save {saved:.0f} s"
        )
        pays = saved > _LOADED * needed  # the rest is spent
        found[stage] = Choice(stage, pays, reason, needed, ratio)
    return [found[stage] for stage in steps]


def compiled_steps(
    lengths: Sequence[int], first: int, fade: float, is_fading: bool
) -> dict[int, int]:
    """Of each stage from `first` on, how many steps would run compiled: those in which norms fade in do not.

    >>> compiled_steps([100, 100], 0, fade=0.25, is_fading=True)
    {0: 100, 1: 75}
    """
    return {
        stage: length - (int(fade * length) if is_fading and stage else 0)
        for stage, length in enumerate(lengths)
        if stage >= first
    }


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
