"""Runs of one configuration with several seeds, what to call them, and what to compare them with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from growthring.runs.run import Run
from growthring.runs.values import canonical, string

_NOT_COMPARED = {"seed", "out", "name", "fixed"}  # told elsewhere, or different for every run


@dataclass(frozen=True)
class Configuration:
    """Runs that differ in their seeds only."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The first run: it speaks for the others in settings and plans."""
        return self.runs[0]

    @property
    def fixed(self) -> bool:
        """Whether these are trainings at full size."""
        return self.first.fixed

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs whose numbers are shown: the finished ones, or all if none is finished."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    def run_label(self, run: Run) -> str:
        """What to call one of the runs."""
        if len(self.runs) == 1:
            return self.label
        seeds = [other.seed for other in self.runs]
        if run.seed is not None and seeds.count(run.seed) == 1:
            return f"{self.label}, seed {run.seed}"
        return f"{self.label}, {run.path}"


def group_runs(runs: Sequence[Run]) -> list[Configuration]:
    """Puts together runs that differ in their seeds only, in the order of their first ones."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_identity(run), []).append(run)
    return _distinguish(
        [Configuration(_base_label(group[0]), tuple(group)) for group in groups.values()]
    )


def reference_of(
    configuration: Configuration, among: Sequence[Configuration]
) -> Configuration | None:
    """The finished fixed-size training to compare with, or None.

    It has the same name or, failing that, the same full-size network for as long; of several,
    the one with the fewest different settings.
    """
    if configuration.fixed:
        return configuration if any(run.finished for run in configuration.runs) else None
    fixed = [other for other in among if other.fixed and any(run.finished for run in other.runs)]
    candidates = [other for other in fixed if other.first.name == configuration.first.name]
    if not candidates:
        size = _full_size(configuration.first)
        candidates = [other for other in fixed if size and _full_size(other.first) == size]

    def distance(other: Configuration) -> int:
        return len(differing_settings([configuration, other]))

    return min(candidates, key=distance, default=None)


def differing_settings(configurations: Sequence[Configuration]) -> list[str]:
    """The settings that do not have one value in all configurations."""
    known = [c.first.settings for c in configurations if c.first.known]
    keys = dict.fromkeys(key for settings in known for key in settings)
    return [
        key
        for key in keys
        if key not in _NOT_COMPARED
        and len({canonical([settings.get(key), key in settings]) for settings in known}) > 1
    ]


def _identity(run: Run) -> str:
    if not run.known:
        return canonical(["unknown", str(run.path)])
    settings = {k: v for k, v in run.settings.items() if k not in _NOT_COMPARED}
    schedule = [] if run.fixed else [run.plan.widths, run.plan.lengths, run.plan.batch_sizes]
    return canonical([run.name, run.fixed, settings, schedule])


def _full_size(run: Run) -> tuple[float | str, ...]:
    plan = run.plan
    if not (plan.parameters and plan.flops and plan.lengths):
        return ()
    return (plan.parameters[-1], plan.flops[-1], sum(plan.lengths), plan.unit)


def _base_label(run: Run) -> str:
    if not run.known:
        return run.path.name or str(run.path)
    return f"{run.name}, {'fixed-size' if run.fixed else 'grown'}"


def _distinguish(configurations: list[Configuration]) -> list[Configuration]:
    """Adds to equal labels the settings that differ or, if there are none, the directory."""
    for attempt in ("settings", "directory", "path"):
        counts = Counter(c.label for c in configurations)
        if max(counts.values(), default=0) < 2:
            break
        renamed = []
        for c in configurations:
            alike = [other for other in configurations if other.label == c.label]
            addition = ""
            if attempt == "settings" and len(alike) > 1:
                settings = c.first.settings
                keys = differing_settings(alike)[:3]
                addition = ", ".join(f"{key}={string(settings.get(key))}" for key in keys)
            elif len(alike) > 1:
                addition = c.first.path.name if attempt == "directory" else str(c.first.path)
            renamed.append(replace(c, label=f"{c.label}, {addition}" if addition else c.label))
        configurations = renamed
    return configurations
