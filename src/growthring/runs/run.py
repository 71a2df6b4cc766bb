"""One run directory, read as far as it goes: a run may be unfinished, damaged or empty."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from growthring.files.foreign import read_plain
from growthring.runs.folder import RunFolder
from growthring.runs.log import read_log
from growthring.runs.metrics import ACCURACY, LOSS, Metric, headline_of, read_metrics
from growthring.runs.records import EpochRecord, GrowthRecord, RatesRecord, StageRecord
from growthring.runs.values import items, mapping, number, parse_json, reason, string, whole

_MOST = 1 << 26  # bytes of a JSON file that are read


@dataclass(frozen=True)
class StagePlan:
    """What was planned, as lists over the stages; a list may be shorter, or empty.

    A run is counted in epochs or in steps: one of the two lists is empty.
    """

    widths: list[dict[str, int]] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    flops_share: float | None = None
    seconds_share: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def unit(self) -> str:
        """What lengths are counted in: "epochs" or "steps"."""
        return "steps" if self.steps and not self.epochs else "epochs"

    @property
    def lengths(self) -> list[float]:
        """Of the stages, in that unit."""
        return self.epochs or self.steps


@dataclass(frozen=True)
class Run:
    """All that a run directory tells; `problems` are sentences about what it does not."""

    path: Path
    name: str
    known: bool  # whether there is a configuration
    fixed: bool
    seed: int | None
    settings: dict[str, Any]
    plan: StagePlan
    machine: str
    versions: dict[str, str]
    epochs: list[EpochRecord]
    growths: list[GrowthRecord]
    rates: list[RatesRecord]
    result: dict[str, Any] | None
    problems: list[str]
    metrics: tuple[Metric, ...] = ()
    stages: tuple[StageRecord, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.result is not None

    @property
    def done(self) -> float:
        """How far it is, in the unit of its plan; 0 before the first record."""
        if not self.epochs:
            return 0.0
        last = self.epochs[-1]
        return (last.step or 0.0) if self.plan.unit == "steps" else last.number

    def final(self, key: str) -> float | None:
        """A number of the result or, where it has none, the last one of the metrics."""
        result = mapping(self.result)
        final = number(result.get(key, mapping(result.get("scores")).get(key)))
        if final is None:
            values = (number(epoch.value(key)) for epoch in reversed(self.epochs))
            final = next((value for value in values if value is not None), None)
        return final

    def parameters(self) -> int | None:
        """The number of parameters at the end, or so far."""
        stage = self.epochs[-1].stage if self.epochs else None
        planned = self.plan.parameters
        candidates = [whole(mapping(self.result).get("parameters"))]
        candidates += [growth.parameters for growth in reversed(self.growths)]
        candidates += [planned[stage]] if stage is not None and 0 <= stage < len(planned) else []
        return next((count for count in candidates if count is not None), None)


def headline(runs: Sequence[Run]) -> Metric:
    """What runs are compared by: the first metric of their task that one of them has."""
    own = list(dict.fromkeys(metric for run in runs for metric in run.metrics))
    keys = [metric.key for metric in (*own, ACCURACY, LOSS)]
    return headline_of([(run.metrics, {key: run.final(key) for key in keys}) for run in runs])


def curve_metric(runs: Sequence[Run]) -> Metric:
    """What curves show: as `headline`, of those that were measured while the runs went on."""
    own = list(dict.fromkeys(metric for run in runs for metric in run.metrics))
    for metric in (*own, ACCURACY, LOSS):
        if any(epoch.value(metric.key) is not None for run in runs for epoch in run.epochs):
            return metric
    return ACCURACY


def read_run(path: str | os.PathLike[str]) -> Run:
    """Reads a run directory; whatever is missing or damaged becomes a sentence in `problems`.

    >>> read_run("/no/such/run").problems
    ['There is no such directory.']
    """
    folder = Path(path)
    problems: list[str] = []
    if not folder.is_dir():
        problems.append("There is no such directory.")
    files = RunFolder(folder)
    config = _read_object(files.config_file, problems)
    result = _read_object(
        files.result_file, problems, is_needed=False
    )  # an unfinished run has none
    log = read_log(files.log_file, problems)
    known = config is not None
    config = config or {}
    versions = {str(k): string(v) for k, v in mapping(config.get("versions")).items()}
    return Run(
        path=folder,
        name=string(config.get("name") or folder.name or str(folder)),
        known=known,
        fixed=config.get("fixed") is True,
        seed=whole(config.get("seed")),
        settings=mapping(config.get("settings")),
        plan=_read_plan(mapping(config.get("plan"))),
        machine=string(config.get("machine") or ""),
        versions=versions,
        epochs=log.epochs,
        growths=log.growths,
        rates=log.rates,
        result=result,
        problems=problems[:1] if not folder.is_dir() else problems,
        metrics=read_metrics(config),
        stages=tuple(log.stages),
    )


def read_runs(paths: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Reads run directories; one that is given twice counts once."""
    return [read_run(path) for path in {Path(path).absolute(): path for path in paths}.values()]


def _read_object(path: Path, problems: list[str], is_needed: bool = True) -> dict[str, Any] | None:
    try:
        value = parse_json(read_plain(path, _MOST))
    except FileNotFoundError:
        if is_needed:
            problems.append(f"It has no {path.name}.")
        return None
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read ({reason(error)}).")
        return None
    if not isinstance(value, dict):
        problems.append(f"{path.name} is not a JSON object.")
        return None
    return value


def _read_plan(plan: dict[str, Any]) -> StagePlan:
    def numbers(key: str) -> list[float]:
        entries = [number(value) for value in items(plan.get(key))]
        return [value for value in entries if value is not None] if None not in entries else []

    return StagePlan(
        widths=[
            {str(group): w for group, v in mapping(stage).items() if (w := whole(v)) is not None}
            for stage in items(plan.get("widths"))
        ],
        epochs=[max(0.0, value) for value in numbers("epochs")],
        steps=[max(0.0, value) for value in numbers("steps")],
        batch_sizes=[int(value) for value in numbers("batch_sizes")],
        parameters=[int(value) for value in numbers("parameters")],
        flops=[max(0.0, value) for value in numbers("flops")],
        memory=numbers("memory_bytes"),
        flops_share=number(plan.get("flops_share")),
        seconds_share=number(plan.get("seconds_share")),
        notes=[string(note) for note in items(plan.get("notes"))],
    )
