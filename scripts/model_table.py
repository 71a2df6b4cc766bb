"""Grows every model of the catalogue and writes docs/models.md.

    python scripts/model_table.py --jobs 2           the whole table, most of an hour on one core
    python scripts/model_table.py --only 'timm:*'    only what matches; prints, and leaves the file alone

Ends with an error if a model grew inexactly, or was refused though the catalogue
says that it grows (or the reverse).
"""

import argparse
import dataclasses
import fnmatch
import gc
import multiprocessing
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import growthring as gr  # noqa: E402
from growthring.core.variance import Mode  # noqa: E402
from scripts.models import CATALOGUE  # noqa: E402
from scripts.models.entry import Entry  # noqa: E402
from scripts.models.growing import (  # noqa: E402
    LEAST_SENSITIVITY,
    SEED,
    STAGES,
    START,
    Prepared,
    bound,
    grow_through,
    prepare,
)

MODES: tuple[Mode, ...] = ("off", "preserving")
TYPES = {"float32": torch.float32, "float64": torch.float64}
LIBRARIES = ("transformers", "torchvision", "timm", "handwritten")
NO_DOUBLE = "—"


@dataclass
class Row:
    """What the table says of one model."""

    entry: Any  # an Entry; its label on the way between processes
    groups: str = ""
    parameters: str = ""
    seed_share: float = 0.0
    seconds: float = 0.0
    changes: dict[tuple[str, str], str] = field(default_factory=dict)
    rounding: str = ""
    refusal: str = ""
    unknown: dict[str, str] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)


def measure(entry: Entry) -> Row:
    """Plans and grows one model in both precisions and modes."""
    row = Row(entry)
    prepared = prepare(entry)
    for name, dtype in TYPES.items():
        prepared = prepared.to(dtype)
        if not prepared.runs():
            row.changes |= {(name, mode): NO_DOUBLE for mode in MODES}
            continue
        try:
            _measure_in(row, prepared, name)
        except gr.GrowthError as error:
            row.refusal = str(error)
            break
        except Exception as error:  # a crash is a finding too, and must not end the run
            row.refusal = f"crashed: {type(error).__name__}: {error}"
            row.complaints.append(row.refusal.splitlines()[0])
            break
        gc.collect()
    expected = entry.expect == "refused"
    if bool(row.refusal) != expected:
        row.complaints.append("was refused" if row.refusal else "grew, though refusal is expected")
    elif expected and entry.because not in row.refusal:
        row.complaints.append(f"was refused without naming {entry.because}")
    elif not expected and row.seed_share > entry.seed_share:
        text = f"its seed has {row.seed_share:.2f} of the parameters, not {entry.seed_share}"
        row.complaints.append(text)
    return row


def _measure_in(row: Row, prepared: Prepared, name: str) -> None:
    started = time.perf_counter()
    plan = prepared.plan()
    if not row.groups:
        row.seconds = time.perf_counter() - started
        row.groups = f"{len(plan.groups.growable)} / {len(plan.groups)}"
        first, last = plan.num_parameters(0), plan.num_parameters(plan.num_stages - 1)
        row.parameters = f"{_count(first)} → {_count(last)}"
        row.seed_share = first / last
        row.unknown = dict(plan.groups.unknown)
    for mode in MODES:
        outcome = grow_through(plan, prepared.fresh_inputs, mode)
        modes = {"eval": outcome.worst, "train": outcome.worst_training}
        row.changes[(name, mode)] = " / ".join(
            NO_DOUBLE if worst is None else f"{worst:.0e}" for worst in modes.values()
        )
        if name == "float32":
            row.rounding = f"{outcome.rounding:.0e}" if outcome.rounding else NO_DOUBLE
        for label, worst in modes.items():
            rounding = outcome.rounding
            if label == "train":
                rounding = max(rounding, outcome.rounding_training)
            limit = bound(TYPES[name], mode, label == "train", rounding)
            if worst is not None and not worst <= limit:
                text = f"{name}, mode {mode}: changed its outputs in {label} mode by {worst:.1e}"
                row.complaints.append(text)
        if outcome.sensitivity < LEAST_SENSITIVITY:
            text = f"{name}, mode {mode}: its outputs hardly depend on its inputs ({outcome.sensitivity:.0e})"
            row.complaints.append(text)
        shapes = {n: t.shape for n, t in prepared.model.state_dict().items()}
        if {n: t.shape for n, t in outcome.model.state_dict().items()} != shapes:
            row.complaints.append(f"{name}, mode {mode}: not the shapes of the full model")


def _count(n: int) -> str:
    for limit, unit in ((10**6, "M"), (10**3, "k")):
        if n >= limit:
            return f"{n / limit:.3g} {unit}"
    return str(n)


def machine() -> str:
    """CPU model and cores."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            x.split(":")[1].strip() for x in info.read_text().splitlines() if "model name" in x
        ]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, {torch.get_num_threads()} of them used"


HEADER = """\
# Models

<!-- Written by scripts/model_table.py; do not edit. -->

Every model here was grown through {stages} stages from a seed of {start:g} of its width to its own shapes,
noise 0, random seed {seed}. Before growing, all parameters were moved off their initial values
at random, and running statistics set to those of the inputs, so that the outputs depend on the inputs.

- command: `make docs-table` (`python scripts/model_table.py`)
- machine: {machine}
- versions: Python {python}, torch {torch}, {libraries}

| column | meaning |
| --- | --- |
| groups | width groups that grow / all of them (inputs, outputs, kernel sizes and the like never grow) |
| parameters | seed → full |
| off, preserving | largest relative change of any output at any growth step, in eval / train mode, by mode of variance transfer and precision; float64 is 64-bit arithmetic throughout, also where the model's own code casts to fewer |
| rounding | what float32 alone does: the seed before any growth, in float32 against itself in float64 |
| exact | ≤ 1e-12 in float64, ≤ 1e-5 in float32, or a few times the model's own rounding where that is more; in mode preserving the ε inside norms may leave up to 1e-3 |
| — | the model's own code does not run in float64, or its train mode not on these inputs |
| seconds | discovery and planning |

transformers models have tiny configurations; torchvision and timm models are the named ones, on small images
where they take them.
"""


def render(rows: Sequence[Row]) -> str:
    """The document."""
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES[:-1])
    lines = [
        HEADER.format(
            stages=STAGES,
            start=START,
            seed=SEED,
            machine=machine(),
            python=platform.python_version(),
            torch=torch.__version__,
            libraries=libraries,
        )
    ]
    lines.append((ROOT / "scripts" / "models" / "limits.md").read_text(encoding="utf-8"))
    columns = [f"{mode}, {name}" for mode in MODES for name in TYPES]
    for library in LIBRARIES:
        chosen = [r for r in rows if r.entry.library == library]
        grown = sorted((r for r in chosen if not r.refusal), key=lambda r: r.entry.name.lower())
        if grown:
            lines += ["", f"## {library}", ""]
            lines.append(
                "| model | groups | parameters | " + " | ".join(columns) + " | rounding | seconds |"
            )
            lines.append("| --- " * (5 + len(columns)) + "|")
        for row in grown:
            changes = [row.changes[(name, mode)] for mode in MODES for name in TYPES]
            known = [row.entry.name, row.groups, row.parameters, *changes, row.rounding]
            cells = [*known, f"{row.seconds:.1f}"]
            lines.append("| " + " | ".join(cells) + " |")
    refused = [r for r in rows if r.refusal]
    if refused:
        lines += ["", "## Refused", "", "| model | reason |", "| --- | --- |"]
    for row in refused:
        reason = " ".join(row.refusal.split())
        short = reason if len(reason) < 300 else f"{reason[:300]} …"
        lines.append(f"| {row.entry.label} | {short.replace('|', chr(92) + '|')} |")
    unknown = [r for r in rows if r.unknown]
    if unknown:
        lines += ["", "## Operators without a rule", ""]
        lines.append("What touches them keeps its width; the rest of the model grows.")
        lines += ["", "| model | operator | in |", "| --- | --- | --- |"]
    for row in unknown:
        for operator, module in row.unknown.items():
            lines.append(f"| {row.entry.label} | {operator} | {module or '(model)'} |")
    return "\n".join(lines) + "\n"


def _measured(chosen: Sequence[Entry], jobs: int) -> Iterator[tuple[Entry, Row | str]]:
    """Each entry with its row, or with why it was left out, in order."""
    labels = [entry.label for entry in chosen]
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=8) as pool:
        yield from zip(chosen, pool.imap(_measure_labelled, labels), strict=True)


def _measure_labelled(label: str) -> Row | str:
    """In a process of its own; how an entry is built cannot be sent there and back."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    entry = next(e for e in CATALOGUE if e.label == label)
    try:
        return dataclasses.replace(measure(entry), entry=label)
    except pytest.skip.Exception as reason:
        return str(reason)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="PATTERN", help="glob on library:name")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "models.md")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    chosen = [
        e for e in CATALOGUE if fnmatch.fnmatch(e.label.lower(), (options.only or "*").lower())
    ]
    if not chosen:
        parser.error(f"--only {options.only} matches no model")
    rows: list[Row] = []
    started = time.perf_counter()
    for i, (entry, row) in enumerate(_measured(chosen, options.jobs), 1):
        print(f"[{i}/{len(chosen)}] {entry.label:<42}", end=" ", flush=True)
        if isinstance(row, str):
            print(f"left out: {row}")
            continue
        row.entry = entry
        rows.append(row)
        changes = " ".join(row.changes.values())
        print(
            row.refusal.splitlines()[0][:150] if row.refusal else f"{row.groups:<9} {changes}",
            f"({time.perf_counter() - started:.0f} s)",
            flush=True,
        )
        for complaint in row.complaints:
            print(f"    WRONG: {complaint}", flush=True)
    if options.only is None:
        options.output.write_text(render(rows), encoding="utf-8")
        print(f"wrote {options.output}")
    wrong = [r for r in rows if r.complaints]
    print(f"{len(rows)} models, {sum(bool(r.refusal) for r in rows)} refused, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
