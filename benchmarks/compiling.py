"""What torch.compile saves at each stage of a plan, what compiling takes, and how many steps repay that.

    python -m benchmarks.compiling [--repeats 5] [--only "ResNet-8, width 32"] [--json]

Forward and backward passes of a stage, plain and compiled as the trainer compiles it, take turns in one process, in
processor time. Compiling is timed with an empty cache and one worker, whose processor time is counted along.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from typing import Any

import torch

import growthring as gr
from benchmarks.measure import Result, Sample, Table, main, parser, ratio, show
from benchmarks.stages import CASES, Case, _image
from growthring import zoo
from growthring.planning.timing import turns
from growthring.train.compiling import Twin

NETWORKS = (
    _image("ResNet-8, width 32", lambda: zoo.resnet8(width=32), 16, 32),
    next(case for case in CASES if case.name.startswith("GPT, width 64")),
)


def cpu_seconds() -> float:
    """Processor time of this process and of the compilers that it has run."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measure_stage(plan: gr.Plan, stage: int, repeats: int) -> tuple[float, Sample, Sample]:
    """CPU seconds of compiling a stage; of a pass, plain and compiled."""
    twin = Twin(plan, stage, torch.device("cpu"), contextlib.nullcontext)
    twin.run()
    before = cpu_seconds()
    twin.compile("inductor")
    spent = cpu_seconds() - before
    plain, compiled = turns([twin.run, twin.run_compiled], repeats, time.process_time)
    twin.drop()
    return spent, Sample(tuple(plain)), Sample(tuple(compiled))


def rows_of(case: Case, repeats: int, data: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for each stage, the widest last."""
    plan = case.plan(batch_size=case.batch)
    rows = []
    for stage in range(plan.num_stages):
        spent, plain, compiled = measure_stage(plan, stage, repeats)
        share = ratio(compiled, plain)
        saved = plain.median - compiled.median
        repaid = f"{spent / saved:,.0f}" if saved > 0 else "never"
        rows.append(
            (case.name, str(stage), f"{plan.footprints[stage].parameters:,}", show(plain, 1e3, 1),
             show(compiled, 1e3, 1), f"**{share.show(2)}**", f"{spent:.0f}", repaid)
        )  # fmt: skip
        data[f"{case.name}, stage {stage}"] = {
            "plain": plain.as_dict(), "compiled": compiled.as_dict(), "compiling": spent,
        }  # fmt: skip
    return rows


def run(args: argparse.Namespace) -> Result:
    table = Table(
        "A forward and a backward pass, CPU ms",
        ("network", "stage", "parameters", "plain", "compiled", "compiled ÷ plain", "compiling, CPU s",
         "repaid after steps"),
    )  # fmt: skip
    data: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        from torch._inductor import config

        with config.patch({"compile_threads": 1}):
            for case in NETWORKS:
                if args.only in (None, case.name):
                    table.rows += rows_of(case, args.repeats, data)
    about = (
        'The stages of a default plan, not compiled and compiled as `compile="always"` in a recipe does: for the '
        "batch size of the stage, in NCHW."
    )
    return Result("Compiling", about, [table], data)


def options() -> argparse.ArgumentParser:
    given = parser(__doc__ or "", repeats=5)
    given.add_argument("--only", choices=[case.name for case in NETWORKS])
    return given


if __name__ == "__main__":
    main(run, options())
