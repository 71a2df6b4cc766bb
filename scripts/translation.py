"""The comparison of translations: python -m scripts.translation --data DIR [--out results/multi30k-small].

A Transformer of one encoder and one decoder block, d_model 128, on Multi30k, for 1,600 steps: what a CPU can do
with three seeds. Every way has the best of some learning rates by its loss on the validation sentences (seed 0,
kept in rates.json); the comparison is then on the test sentences. The same command goes on with what was stopped,
and several processes may share the work.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch

from growthring.compare import Comparison, Contender, format_table, manifest_of, notes
from growthring.compare.match import matched_length
from growthring.compare.runner import Attempt, Runner
from growthring.errors import GrowthError
from growthring.files.atomic import write_bytes
from growthring.runs.results import read_result
from growthring.train import Progress, Recipe, Silence, change
from growthring.train.recipes import RECIPES
from growthring.train.setup import make_model, make_plan
from growthring.train.tasks import task_of

SMALL = {
    "name": "multi30k-small",
    "model_options.d_model": 128,
    "model_options.d_embed": 128,
    "model_options.num_encoder_layers": 1,
    "model_options.num_decoder_layers": 1,
    "model_options.dropout": 0.0,  # two epochs: nothing is learnt by heart
    "model_options.src_vocab_size": 2000,
    "model_options.tgt_vocab_size": 2000,
    "task_options.vocab_size": 2000,
    "batch_size": 32,
    "warmup_steps": 100,
    "total_steps": 1600,
}
# The paper's Transformer in proportion: an eighth of the width, doubled after each quarter of the run.
PAPER = {
    "preset": "paper",
    "stages": 4,
    "start": 0.125,
    "schedule": "doubling",
    "growth": None,
    "growth_at": (0.25, 0.5, 0.75),
    "heads": "size",
}
_ONE_RATE = {"optimizer_options.rate_adaptation": None}
_NO_STATE = {"optimizer_options.state_at_growth": "reset"}
GROWN: dict[str, tuple[dict[str, Any], str]] = {
    "doubling": ({}, "our defaults: half the width, doubled at 70 % of the run, WSD"),
    "doubling-no-buffers": (_NO_STATE, "the same, Adam's moments dropped at the growth"),
    "doubling-ra": (
        {"optimizer_options.rate_adaptation": "norm", "optimizer_options.ages": "ring"},
        "the same with moments kept, ages of rings and rate adaptation",
    ),
    "doubling-net2net": ({"method": "net2net"}, "Net2Net in the schedule of doubling"),
    "paper-no-buffers": (
        {**PAPER, **_ONE_RATE, **_NO_STATE},
        "the paper's schedule and variance transfer, moments dropped",
    ),
    "paper-buffers": ({**PAPER, **_ONE_RATE}, "the same, moments kept"),
    "paper-buffers-ra": (PAPER, "the same, moments kept, with rate adaptation"),
    "paper-net2net": (
        {**PAPER, **_ONE_RATE, "method": "net2net"},
        "Net2Net in the paper's schedule",
    ),
}
# On the validation sentences these were within a percent of doubling's perplexity: they are not compared further.
ALIKE = ("doubling-no-buffers", "doubling-ra", "doubling-net2net")
FULL = {"fixed": True}


def base() -> Recipe:
    """What all ways change."""
    return change(RECIPES["multi30k-transformer"](), SMALL)


def length(name: str) -> int:
    """Steps of full-size training for the FLOPs of a way that grows, rounded up in its favour."""
    recipe = change(base(), GROWN[name][0])
    model = make_model(recipe, torch.Generator().manual_seed(0), None)
    plan = make_plan(recipe, model, task_of(recipe).example(recipe))
    return matched_length(plan.flops_share, recipe.length).count


def ways() -> dict[str, dict[str, Any]]:
    """What is tuned: all ways that grow, and full size at each of their costs under each schedule."""
    found = {"fixed": FULL, **{name: settings for name, (settings, _) in GROWN.items()}}
    for cost in ("doubling", "paper-buffers"):
        for schedule in ("wsd", "linear", *(("cosine",) if cost != "doubling" else ())):
            settings = {**FULL, "total_steps": length(cost), "lr_schedule": schedule}
            found[f"full-at-{cost.split('-')[0]}-{schedule}"] = settings
    return found


def tune(out: Path, data: str, progress: Progress) -> dict[str, dict[str, float]]:
    """Validation losses by way and rate; those that were measured before are kept."""
    path, runs = out / "rates.json", Path("runs/translation-rates")
    options = {"data": data, "device": torch.device("cpu"), "keep": 1, "checkpoint_minutes": 5.0}
    runner = Runner(runs, options, retry=False, progress=Silence())
    own = {"task_options.test_on": "valid", "task_options.beam": 1}
    for name, settings in ways().items():
        while (rate := next_rate(_losses(path).get(name, {}))) is not None:
            recipe = change(base(), {**settings, "lr": rate, **own})
            folder = runs / f"{name}-{rate:g}"
            if runner.attempt(recipe, folder, folder.name, None) is Attempt.ELSEWHERE:
                break  # another process goes on with this way
            result = read_result(folder)
            found = _losses(path)
            found.setdefault(name, {})[f"{rate:g}"] = float(result.get("test_loss", math.nan))
            write_bytes(path, (json.dumps(found, indent=1) + "\n").encode())
            loss = found[name][f"{rate:g}"]
            progress.say(f"{name} at {rate:g}: {loss:.4f} {result.get('scores')}")
    return _losses(path)


def next_rate(losses: dict[str, float]) -> float | None:
    """The rate to try next: from 1e-3 on by factors of two, until the best is between two that are worse."""
    if not losses:
        return 1e-3
    rate = best(losses)
    return next((r for r in (2 * rate, rate / 2) if f"{r:g}" not in losses), None)


def _losses(path: Path) -> dict[str, dict[str, float]]:
    return json.loads(path.read_text()) if path.exists() else {}


def best(losses: dict[str, float]) -> float:
    """The rate of the least loss; one that diverged has none."""
    return float(min(losses, key=lambda r: math.inf if math.isnan(losses[r]) else losses[r]))


def rates_table(losses: dict[str, dict[str, float]]) -> str:
    """Validation perplexities of every way at every rate that was tried, in Markdown."""
    rates = sorted({rate for tried in losses.values() for rate in tried}, key=float)
    lines = [f"| way | {' | '.join(rates)} |", "| --- |" + " ---: |" * len(rates)]
    for name in ways():
        tried = losses[name]
        cells = [f"{math.exp(tried[rate]):.2f}" if rate in tried else "" for rate in rates]
        cells = [
            f"**{c}**" if r == f"{best(tried):g}" else c for r, c in zip(rates, cells, strict=True)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(["# Rates", "", *lines]) + "\n"


def contenders(rates: dict[str, dict[str, float]], lr: float) -> list[Contender]:
    """All ways, each at its best rate; fixed and its matched twins, at `lr`, are in every comparison."""
    found = []
    at_paper = [name for name in ways() if name.startswith("full-at-paper")]
    strongest = min(at_paper, key=lambda name: min(rates[name].values()))
    for name, settings in ways().items():
        rate = best(rates[name])
        if name.startswith(("fixed", "full-at-doubling")) and rate == lr:
            continue  # fixed, fixed-flops and fixed-flops-linear are these
        if name in ALIKE or (name in at_paper and name != strongest):
            continue  # full size at the paper's cost has the best of three schedules
        text = GROWN[name][1] if name in GROWN else "full size, at its own best rate"
        own = "full-length" if name == "fixed" else name
        found.append(Contender(own, {**settings, "lr": rate}, f"{text} ({rate:g})"))
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/multi30k-small"))
    parser.add_argument("--only-rates", action="store_true", help="stop after the rates")
    args = parser.parse_args()
    torch.set_num_threads(1)
    progress, data = Progress(), str(Path(args.data).expanduser().resolve())
    args.out.mkdir(parents=True, exist_ok=True)
    rates = tune(args.out, data, progress)
    write_bytes(args.out / "rates.md", rates_table(rates).encode())
    if args.only_rates:
        return
    lr = best(rates["full-at-doubling-wsd"])
    try:
        comparison = Comparison(
            change(base(), {"lr": lr}),
            contenders(rates, lr),
            args.seeds,
            args.out,
            data=data,
            match="doubling",
            clock="cpu",
            keep=1,
            progress=progress,
        )
        rows = comparison.run()
    except GrowthError as error:
        raise SystemExit(f"{error}") from error
    manifest = manifest_of(comparison.out)
    print(format_table(rows, manifest.clock))
    print("\n".join(notes(rows, manifest)))


if __name__ == "__main__":
    main()
