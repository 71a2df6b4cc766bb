"""What the benchmarks share: the machine, repeated timings, where time goes, tables, the command line.

Two numbers are only ever compared within one process, and each repeat measures both, one right after the
other: a ratio then survives a busy machine, seconds do not.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import importlib.metadata
import json
import os
import platform
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Sample:
    """Repeated measurements: their median, and the median absolute deviation from it."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def deviation(self) -> float:
        return statistics.median(abs(v - self.median) for v in self.values)

    def show(self, digits: int = 3, unit: str = "") -> str:
        return f"{self.median:.{digits}f} ± {self.deviation:.{digits}f}{unit}"

    def as_dict(self) -> dict[str, Any]:
        return {"median": self.median, "deviation": self.deviation, "values": list(self.values)}


def ratio(over: Sample, under: Sample) -> Sample:
    """Ratio per repeat: both members of a pair were measured at nearly the same time."""
    return Sample(tuple(a / b for a, b in zip(over.values, under.values, strict=True)))


def show(sample: Sample, unit: float, digits: int) -> str:
    """A sample in another unit."""
    return Sample(tuple(unit * v for v in sample.values)).show(digits)


def verdict(sample: Sample, target: float | None) -> list[str]:
    """The target, and whether the median is within it."""
    found = "met" if target is None or sample.median <= target else "missed"
    return ["", ""] if target is None else [f"≤ {target:g}", found]


def seconds(action: Callable[[], Any]) -> float:
    """Wall-clock time of one call, garbage collected before; what it returns is dropped after the clock stops."""
    gc.collect()
    started = time.perf_counter()
    result = action()
    elapsed = time.perf_counter() - started
    del result
    return elapsed


@dataclass
class Table:
    """A table with its heading, and notes under it."""

    title: str
    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self, level: int = 3) -> str:
        rows = [self.header, ["---"] * len(self.header), *self.rows]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([f"{'#' * level} {self.title}", "", *lines, *notes])

    def text(self) -> str:
        rows = [self.header, *self.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.header))]
        lines = [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        return "\n".join([self.title, *(f"  {x}" for x in (*lines, *self.notes))])


@dataclass
class Result:
    """What a benchmark found: a title, what was compared in words, tables, and the raw numbers."""

    title: str
    about: str
    tables: list[Table]
    data: dict[str, Any]


def shares(
    profile: cProfile.Profile, parts: Mapping[str, Sequence[tuple[str, str]]]
) -> dict[str, tuple[float, int]]:
    """Share of the profiled time, and calls, of groups of functions named as (end of file name, function).

    Built-in functions have the file name "~". Cumulative time is taken, so groups must not call each other.
    """
    stats = pstats.Stats(profile)
    total = stats.total_tt  # type: ignore[attr-defined]
    found = {}
    for part, functions in parts.items():
        cumulative, calls = 0.0, 0
        for (file, _, function), (_, n, _, cum, _) in stats.stats.items():  # type: ignore[attr-defined]
            if any(file.endswith(f) and name == function for f, name in functions):
                cumulative, calls = cumulative + cum, calls + n
        found[part] = (cumulative / total, calls)
    found["the rest"] = (1 - sum(share for share, _ in found.values()), 0)
    return found


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        pass
    versions = []
    for name in ("torch", "transformers", "gromo"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} not installed")
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    )
    return {
        "machine": f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "versions": f"Python {platform.python_version()}, {', '.join(versions)}",
        "growthring": git.stdout.strip() or "unknown",
        "threads": f"{torch.get_num_threads()} (OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'unset')})",
    }


def parser(about: str, repeats: int) -> argparse.ArgumentParser:
    """The command line that every benchmark has."""
    result = argparse.ArgumentParser(description=about)
    result.add_argument("--repeats", type=int, default=repeats, help="default %(default)s")
    result.add_argument("--seed", type=int, default=0, help="default %(default)s")
    result.add_argument("--threads", type=int, default=1, help="torch threads, default %(default)s")
    result.add_argument("--json", action="store_true", help="print the raw numbers instead")
    return result


def main(run: Callable[[argparse.Namespace], Result], options: argparse.ArgumentParser) -> None:
    """Runs a benchmark from the command line."""
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    result = run(args)
    settings = {**machine(), "seed": str(args.seed), "repeats": str(args.repeats)}
    if args.json:
        json.dump({"settings": settings, **asdict(result)}, sys.stdout, indent=1)
        print()
        return
    print(f"{result.title}\n{result.about}\n")
    print("\n".join(f"{name}: {value}" for name, value in settings.items()))
    for table in result.tables:
        print(f"\n{table.text()}")
