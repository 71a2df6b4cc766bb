"""Discovery against torch.export: how many times one trace of the model does `discover_width_groups` take?

python -m benchmarks.discovery [--repeats 5] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import io
import warnings
from functools import partial
from typing import Any

import torch

import growthring as gr
from benchmarks.measure import Result, Sample, Table, main, parser, ratio, seconds, shares
from benchmarks.networks import NETWORKS
from growthring.graph.trace import split_inputs

TARGET = 3.0

_PARTS = {
    "traces (torch.export)": [("graph/trace.py", "trace")],
    "copies of the model": [("graph/resize.py", "copy_with")],
    "axis rules": [("rules/run.py", "walk_trace")],
    "fitting attributes": [("graph/candidates.py", "read_sizes"), ("graph/compare.py", "compare")],
}


def export(model: torch.nn.Module, inputs: Any) -> Any:
    """The trace alone."""
    args, kwargs = split_inputs(inputs)
    with contextlib.redirect_stderr(io.StringIO()):
        return torch.export.export(model, args, kwargs, strict=False)


def run(args: argparse.Namespace) -> Result:
    """Times every network."""
    times = Table(
        "Discovery and torch.export",
        [
            "network",
            "width groups",
            "torch.export, s",
            "discovery, s",
            f"ratio (target ≤ {TARGET:g})",
        ],
    )
    profile = Table(
        "Where discovery's time goes", ["network", "traces of the model", *_PARTS, "the rest"]
    )
    profile.notes.append(
        "From cProfile, which stretches Python code. One trace finds the operators; each further one checks that "
        "the model's own code follows other widths (failing attempts are short)."
    )
    data: dict[str, Any] = {}
    for name, make in NETWORKS.items():
        try:
            model, inputs = make(args.seed)
        except ImportError as error:
            times.notes.append(f"{name} left out: {error}")
            continue
        model.eval()
        warnings.simplefilter("ignore")
        export(model, inputs)  # the first call imports much of torch
        groups = gr.discover_width_groups(model, inputs)
        alone, discovery = [], []
        for _ in range(args.repeats):
            alone.append(seconds(partial(export, model, inputs)))
            discovery.append(seconds(partial(gr.discover_width_groups, model, inputs)))
        base, ours = Sample(tuple(alone)), Sample(tuple(discovery))
        factor = ratio(ours, base)
        count = f"{len(groups.growable)} grow, {len(list(groups)) - len(groups.growable)} fixed"
        times.rows.append([name, count, base.show(2), ours.show(2), f"**{factor.show(2)}**"])
        profiler = cProfile.Profile()
        profiler.runcall(gr.discover_width_groups, model, inputs)
        found = shares(profiler, _PARTS)
        profile.rows.append(
            [name, str(found["traces (torch.export)"][1])]
            + [f"{100 * share:.0f} %" for share, _ in found.values()]
        )
        data[name] = {
            "export": base.as_dict(),
            "discovery": ours.as_dict(),
            "ratio": factor.as_dict(),
            "target": TARGET,
            "shares": {part: share for part, (share, _) in found.items()},
        }
    about = (
        "`torch.export.export(model, inputs, strict=False)` alone, and "
        "`gr.discover_width_groups(model, inputs)`, in turns in one process, after one warm-up of "
        "each. Images 2×3×224×224, texts 2×64 tokens."
    )
    return Result("Discovery", about, [times, profile], data)


if __name__ == "__main__":
    main(run, parser("Times discovery against torch.export alone.", repeats=5))
