"""Standings: what each contender reached and what it cost, read from the folders of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from growthring.compare.contenders import FIXED
from growthring.compare.manifest import Entry, Manifest
from growthring.compare.stored import flat
from growthring.planning.lengths import Length
from growthring.runs.folder import RunFolder
from growthring.runs.metrics import ACCURACY, FORGETTING, LOSS, Metric, headline_of, read_metrics
from growthring.runs.results import CLOCKS, damage_of, read_object, read_result
from growthring.runs.spread import Spread, spread, without_rounding
from growthring.runs.values import items, number, numbers
from growthring.train import format_settings

FAILED = "failed.json"


@dataclass(frozen=True)
class Standing:
    """One contender over its finished seeds; shares are relative to the mean of `fixed`.

    Attributes:
        name, text, settings: of the contender.
        fixed: whether it is of full size from the start.
        length: of its training; None while it is not decided.
        asked: how many seeds were asked for.
        seeds: those that are finished.
        runs: their folders, relative to the comparison.
        accuracy, loss: on the test data.
        metric: what the task is judged by, the same for all contenders.
        scores: other metrics on the test data, by their keys.
        notes: how they were measured.
        flops_share, seconds_share: cost over that of `fixed`; seconds by the comparison's clock.
        seconds: of training, by that clock.
        memory: peak memory in bytes, and as `memory_share` over that of `fixed`.
        search_share: FLOPs that the growing method spent on its own optimisation, over all of the run.
        pass_share: FLOPs of extra passes over old data, likewise; None where there was none.
        state: empty if all is finished; else what is missing or failed.
        values: what the means are of, as lists over `seeds`.
        machines: where the runs ran.
    """

    name: str
    text: str
    settings: tuple[str, ...]
    fixed: bool
    length: Length | None
    asked: int
    seeds: tuple[int, ...]
    runs: tuple[str, ...]
    accuracy: Spread | None
    loss: Spread | None
    flops_share: Spread | None
    seconds_share: Spread | None
    seconds: Spread | None
    memory: Spread | None
    memory_share: Spread | None
    search_share: Spread | None
    state: str
    values: Mapping[str, list[float | None]] = field(default_factory=dict)
    machines: tuple[str, ...] = ()
    metric: Metric = ACCURACY
    scores: Mapping[str, Spread | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pass_share: Spread | None = None

    @property
    def forgetting(self) -> Spread | None:
        """What a run on growing data knew of its old classes, and knows no more."""
        return self.scores.get(FORGETTING.key)

    @property
    def quality(self) -> Spread | None:
        """What it reached, by its metric."""
        own = {ACCURACY.key: self.accuracy, LOSS.key: self.loss}
        return own.get(self.metric.key, self.scores.get(self.metric.key))

    def as_dict(self) -> dict[str, Any]:
        """The standing as JSON can hold it."""
        return flat(self)


def read_standings(out: Path, manifest: Manifest) -> list[Standing]:
    """The standings of a comparison as far as its runs are finished."""
    fixed = manifest.contenders.get(FIXED)
    clock = CLOCKS[manifest.clock]
    base: dict[str, float] = {}
    if fixed is not None:
        results = [read_result(out / manifest.folder(FIXED, s)) for s in range(fixed.seeds)]
        for key in ("flops", clock, "peak_memory"):
            whole = spread(number(result.get(key)) for result in results)
            if whole is not None and whole.mean > 0:
                base[key] = whole.mean
    metric = _metric(out, manifest)
    return [
        _standing(out, manifest, name, entry, base, metric)
        for name, entry in manifest.entries().items()
    ]


def _metric(out: Path, manifest: Manifest) -> Metric:
    """What the runs are judged by, as far as they are finished."""
    runs = []
    for name, entry in manifest.entries().items():
        for seed in range(entry.seeds if entry.length is not None else 0):
            folder = out / manifest.folder(name, seed)
            result = read_result(folder)
            if result:
                metrics = read_metrics(read_object(RunFolder(folder).config_file))
                runs.append((metrics, {**result, **numbers(result.get("scores"))}))
    return headline_of(runs)


def _standing(
    out: Path,
    manifest: Manifest,
    name: str,
    entry: Entry,
    base: Mapping[str, float],
    metric: Metric,
) -> Standing:
    folders = {seed: manifest.folder(name, seed) for seed in range(entry.seeds)}
    results = {
        seed: result
        for seed, folder in folders.items()
        if entry.length is not None and (result := read_result(out / folder))
    }
    clock = CLOCKS[manifest.clock]

    def values(key: str) -> list[float | None]:
        return [number({**numbers(r.get("scores")), **r}.get(key)) for r in results.values()]

    def share(key: str) -> Spread | None:
        whole = base.get(key)
        return spread(v / whole for v in values(key) if v is not None) if whole else None

    def part(key: str) -> Spread | None:
        pairs = zip(values(key), values("flops"), strict=True)
        return without_rounding(spread(p / f for p, f in pairs if p and p > 0 and f))

    scores = list(dict.fromkeys(k for r in results.values() for k in numbers(r.get("scores"))))
    configs = [read_object(RunFolder(out / folders[seed]).config_file) for seed in results]
    return Standing(
        name=name,
        text=entry.text,
        settings=tuple(format_settings(entry.settings)),
        fixed=entry.fixed,
        length=entry.length,
        asked=entry.seeds,
        seeds=tuple(results),
        runs=tuple(folders[seed] for seed in results),
        accuracy=spread(values("test_accuracy")),
        loss=spread(values("test_loss")),
        flops_share=without_rounding(share("flops")),
        seconds_share=share(clock),
        seconds=spread(values(clock)),
        memory=spread(values("peak_memory")),
        memory_share=share("peak_memory"),
        search_share=part("search_flops"),
        pass_share=part("pass_flops"),
        state=_state(out, manifest, name, entry, results),
        values={
            key: values(key)
            for key in (
                *("test_accuracy", "test_loss", "flops", "seconds", "cpu_seconds"),
                *("peak_memory", "search_flops"),
                *(["pass_flops"] if any(values("pass_flops")) else []),  # of dynamic OSGD only
                *scores,
            )
        },
        metric=metric,
        scores={key: spread(values(key)) for key in scores},
        notes=tuple(dict.fromkeys(str(n) for r in results.values() for n in items(r.get("notes")))),
        machines=tuple(dict.fromkeys(str(config.get("machine", "")) for config in configs)),
    )


def _state(
    out: Path, manifest: Manifest, name: str, entry: Entry, results: Mapping[int, Any]
) -> str:
    """What is damaged or missing, in words; a failure says why."""
    folders = [manifest.folder(name, seed) for seed in range(entry.seeds)]
    damaged = {folder: text for folder in folders if (text := damage_of(out / folder))}
    if damaged:
        folder, text = next(iter(damaged.items()))
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        return f"damaged: {folder}/result.json{more} {text}"
    failures = {}
    for seed in range(entry.seeds):
        failure = read_object(out / manifest.folder(name, seed) / FAILED)
        if seed not in results and failure:
            failures[seed] = str(failure.get("message", "no reason is known"))
    if failures:
        which = (
            "" if len(failures) == entry.seeds else f" in {len(failures)} of {entry.seeds} seeds"
        )
        return f"failed{which}: {next(iter(failures.values()))}"
    if len(results) == entry.seeds:
        return ""
    if entry.length is None:
        return _why_undecided(out, manifest, manifest.match or "")
    return f"{len(results)} of {entry.seeds} seeds finished" if results else "not finished"


def _why_undecided(out: Path, manifest: Manifest, match: str) -> str:
    for needed in (FIXED, match):
        folder = out / manifest.folder(needed, 0)
        if not read_result(folder):
            is_failed = bool(read_object(folder / FAILED))
            return f"no cost to match: '{needed}' {'failed' if is_failed else 'is not finished'}"
    return f"no cost to match: '{match}' did not record it"
