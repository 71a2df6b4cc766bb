"""One growth step against copying the grown parameters once: seconds, and memory at the peak.

    python -m benchmarks.growth [--repeats 7] [--profile] [--json]

Seconds: each repeat makes a fresh copy of the model at stage t, times `Grower.grow(measure=False)` on
it, then times `[p.detach().clone() for p in model.parameters()]` of the grown model in the same process.
Both find memory in the same state (see `time_step`): pages that the system has yet to supply cost several
times what copying into them does, so a copy that reuses what growth has just freed would look too cheap.

Memory: torch's CPU allocator reports every allocation and release to the profiler
(`profile_memory=True`); their running sum is the memory that the growth step holds, to the byte,
without sampling. To its largest value the bytes of the model before the growth are added, which stay
alive until the end so that a failure can undo everything. As a check, the peak resident memory of a
process of its own is taken (Linux: /proc/self/clear_refs resets it, VmHWM reads it).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import cProfile
import ctypes
import gc
import json
import pstats
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import growthring as gr
from benchmarks.measure import Result, Sample, Table, main, parser, ratio, seconds, shares
from benchmarks.networks import NETWORKS

TARGET_SECONDS, TARGET_MEMORY = 5.0, 2.0
NAMES = ("ResNet-50 (zoo)", "GPT-2 124M (zoo)")
STEPS = (4, 7)  # a middle step of the paper's nine stages, and the last one
DEFAULT_NOISE = 1e-3

_PARTS = {
    "checks (finite, shapes)": [
        ("graph/check.py", "check_finite"),
        ("growing/matching.py", "check_shapes"),
    ],
    "variance transfer": [("methods/rescale.py", "transfer")],
    "new tensors": [("methods/paired.py", "tensors")],
    "installing": [("growing/module.py", "install")],
    "noise": [("methods/paired.py", "add_noise")],
}


class Case:
    """A network of the paper's plan, at any stage."""

    def __init__(self, name: str, seed: int) -> None:
        model, inputs = NETWORKS[name](seed)
        self.plan = gr.plan(model.eval(), inputs)
        self.seed = seed
        self._stages: dict[int, nn.Module] = {}
        grower = gr.Grower(self.plan.build_seed(), self.plan, generator=self._generator())
        while not grower.is_full:
            if grower.stage in STEPS:
                grower.finish()  # statistics that fade in are no part of the step
                self._stages[grower.stage] = copy.deepcopy(grower.model)
            grower.grow(measure=False)

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def grower(self, stage: int, noise: float = DEFAULT_NOISE) -> gr.Grower:
        """A grower on a fresh model of that stage."""
        model = copy.deepcopy(self._stages[stage])
        return gr.Grower(model, self.plan, noise=noise, generator=self._generator())


def num_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])


def copies(model: nn.Module) -> list[torch.Tensor]:
    """Every parameter, copied once."""
    return [p.detach().clone() for p in model.parameters()]


def keep_freed_memory() -> None:
    """Tells glibc to serve tensors from its heap and to keep what is freed: memory can then be warm."""
    with contextlib.suppress(OSError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def return_freed_memory() -> None:
    """Gives memory that is free, yet held, back to the system."""
    gc.collect()
    with contextlib.suppress(OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def time_step(
    case: Case, stage: int, noise: float, repeats: int, warm: bool
) -> tuple[Sample, Sample]:
    """Seconds of copying and of growing, both in memory of the same state.

    Warm: twice the model's size was just used and freed. Cold: the system has to supply every page,
    which costs more than copying into it.
    """

    def prepare() -> None:
        if warm:
            _ = [copies(case.plan.model) for _ in range(2)]
        else:
            return_freed_memory()

    copying, growing = [], []
    for i in range(repeats + 1):
        grower = case.grower(stage, noise)
        prepare()
        grown = seconds(partial(grower.grow, measure=False))
        prepare()
        copied = seconds(partial(copies, grower.model))
        if i:
            growing.append(grown)
            copying.append(copied)
    return Sample(tuple(copying)), Sample(tuple(growing))


def allocated(grower: gr.Grower) -> int:
    """Largest number of bytes that a growth step holds beyond what there was before it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        grower.grow(measure=False)
    results = profile.profiler.kineto_results
    events = [e for e in results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(x for x in lines if x.startswith(field)).split()[1])


def resident_growth(grower: gr.Grower) -> int | None:
    """Peak resident memory of a growth step beyond what there was before it; None where there is no /proc."""
    try:
        return_freed_memory()  # it would hide the growth
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = resident("VmRSS")
    grower.grow(measure=False)
    return resident("VmHWM") - before


def measure_memory(name: str, stage: int, noise: float, seed: int) -> dict[str, Any]:
    """Both measures of one step, as shares of the grown parameters' bytes."""
    case = Case(name, seed)
    case.grower(stage, noise).grow(measure=False)  # what is only loaded once
    grower = case.grower(stage, noise)
    before = num_bytes(grower.model)
    found = resident_growth(grower)
    grown = sum(p.numel() * p.element_size() for p in grower.model.parameters())
    peak = allocated(case.grower(stage, noise))
    return {
        "old": before / grown,
        "allocated": (before + peak) / grown,
        "resident": None if found is None else (before + found) / grown,
    }


def memory_in_a_process(name: str, stage: int, noise: float, seed: int) -> dict[str, Any]:
    """The same, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.growth", "--seed", str(seed)]
    command += ["--memory", name, str(stage), str(noise)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run(args: argparse.Namespace) -> Result:
    """Times and weighs the steps of every network."""
    keep_freed_memory()
    times = Table(
        "Seconds of one growth step",
        [
            *("network", "step", "parameters", "copy once, ms", "grow, ms"),
            *(f"ratio (target ≤ {TARGET_SECONDS:g})", "ratio in cold memory", "ratio with noise=0"),
        ],
    )
    times.notes.append(
        "Growing and copying find memory in the same state: warm (it was just used and freed, so the ratio "
        "is of the work alone) or cold (the system supplies every page, to both)."
    )
    memory = Table(
        "Memory at the peak of one growth step, as a multiple of the grown parameters",
        [
            *("network", "step", "old model"),
            *(f"old + new at the peak (target ≤ {TARGET_MEMORY:g})", "with noise=0"),
            "peak of resident memory",
        ],
    )
    memory.notes.append(
        "Old and new tensors are both alive until the step has succeeded, so 1 + the share of the old model is the "
        "least that a step which can be undone needs."
    )
    where = Table("Where the time goes", ["network", "step", *_PARTS, "the rest"])
    where.notes.append("From cProfile, in the same warm process.")
    data: dict[str, Any] = {}
    for name in NAMES:
        case = Case(name, args.seed)
        for stage in STEPS:
            step = f"{stage} → {stage + 1}"
            params = [case.plan.num_parameters(t) for t in (stage, stage + 1)]
            copying, growing = time_step(case, stage, DEFAULT_NOISE, args.repeats, warm=True)
            factor = ratio(growing, copying)
            cold = ratio(*reversed(time_step(case, stage, DEFAULT_NOISE, args.repeats, warm=False)))
            quiet = ratio(*reversed(time_step(case, stage, 0.0, args.repeats, warm=True)))
            milliseconds = [Sample(tuple(1e3 * v for v in s.values)) for s in (copying, growing)]
            times.rows.append(
                [name, step, " → ".join(f"{n / 1e6:.1f}M" for n in params)]
                + [m.show(1) for m in milliseconds]
                + [f"**{factor.show(1)}**", cold.show(1), quiet.show(1)]
            )
            profiler = cProfile.Profile()
            grower = case.grower(stage)
            time_step(case, stage, DEFAULT_NOISE, 0, warm=True)
            profiler.runcall(grower.grow, measure=False)
            found = shares(profiler, _PARTS)
            assert all(found[part][1] for part in _PARTS), "a part has another name now"
            where.rows.append([name, step, *(f"{100 * s:.0f} %" for s, _ in found.values())])
            if args.profile:
                pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(20)
            weights = [
                memory_in_a_process(name, stage, noise, args.seed) for noise in (DEFAULT_NOISE, 0.0)
            ]
            rss = weights[0]["resident"]
            memory.rows.append(
                [
                    *(name, step, f"{weights[0]['old']:.2f}", f"**{weights[0]['allocated']:.2f}**"),
                    *(f"{weights[1]['allocated']:.2f}", "unknown" if rss is None else f"{rss:.2f}"),
                ]
            )
            data[f"{name}, {step}"] = {
                "parameters": params,
                "copy": copying.as_dict(),
                "grow": growing.as_dict(),
                "ratio": factor.as_dict(),
                "ratio_in_cold_memory": cold.as_dict(),
                "ratio_without_noise": quiet.as_dict(),
                "memory": weights[0],
                "memory_without_noise": weights[1],
                "targets": {"ratio": TARGET_SECONDS, "memory": TARGET_MEMORY},
                "shares": {part: share for part, (share, _) in found.items()},
            }
    about = (
        "A step of `gr.plan(model, inputs)` (nine stages from a quarter of the width, as in the paper): "
        "`Grower(model, plan).grow(measure=False)` without an optimizer, against one copy of every parameter "
        "of the grown model. Each repeat measures both, in one process; the first is dropped."
    )
    return Result("Growth", about, [times, memory, where], data)


def _options() -> argparse.ArgumentParser:
    options = parser("Times and weighs one growth step.", repeats=7)
    options.add_argument("--profile", action="store_true", help="print cProfile's tables as well")
    options.add_argument(
        "--memory", nargs=3, metavar=("NETWORK", "STAGE", "NOISE"), help=argparse.SUPPRESS
    )
    return options


if __name__ == "__main__":
    given = _options().parse_args()
    if given.memory:
        torch.set_num_threads(given.threads)
        print(
            json.dumps(
                measure_memory(
                    given.memory[0], int(given.memory[1]), float(given.memory[2]), given.seed
                )
            )
        )
    else:
        main(run, _options())
