"""Synthetic run directories, as the trainer writes them."""

import json
import math
import random
from pathlib import Path
from typing import Any

from growthring.runs.metrics import ACCURACY, FORGETTING, LOSS, stored

WIDTHS = [16, 20, 24, 28, 36, 42, 50, 64]
EPOCHS = [4, 4, 5, 5, 6, 8, 10, 18]
NUM_STEPS = 40  # per epoch
FULL_FLOPS = 4.1e7


def plan(fixed: bool) -> dict[str, Any]:
    widths = WIDTHS[-1:] if fixed else WIDTHS
    epochs = [sum(EPOCHS)] if fixed else EPOCHS
    cost = [(w / WIDTHS[-1]) ** 2 for w in widths]
    share = sum(c * e for c, e in zip(cost, epochs, strict=True)) / sum(epochs)
    return {
        "stages": len(widths),
        "widths": [{"conv1": w, "layer1.0.conv1": w, "layer2": 2 * w} for w in widths],
        "epochs": epochs,
        "batch_sizes": [128] * len(widths),
        "parameters": [int(272_474 * c) for c in cost],
        "flops": [FULL_FLOPS * c for c in cost],
        "memory_bytes": [4e7 * c for c in cost],
        "flops_share": share,
        "notes": [] if fixed else ["layer4 is frozen: 'aten.unfold' has no rule."],
    }


def metrics(
    fixed: bool, seed: int, quality: float = 0.0, num_epochs: int = 10**6
) -> list[dict[str, Any]]:
    """The records of a run that goes on for so many epochs, or to its end."""
    source = random.Random(seed * 7919 + fixed)
    the_plan = plan(fixed)
    records: list[dict[str, Any]] = []
    seconds = flops = 0.0
    total = sum(EPOCHS)
    born = [0]
    epoch = 0
    for stage, epochs in enumerate(the_plan["epochs"]):
        for _ in range(epochs):
            if epoch >= num_epochs:
                return records
            epoch += 1
            cost = the_plan["flops"][stage] / FULL_FLOPS
            seconds += 1.9 * (0.35 + 0.65 * cost) + source.uniform(0, 0.06)
            flops += 3 * 5000 * the_plan["flops"][stage]
            progress = epoch / total
            size = the_plan["flops"][stage] / FULL_FLOPS
            best = 0.905 + 0.04 * size + quality
            accuracy = best - (best - 0.1) * math.exp(-7 * progress - 0.35 * epoch)
            accuracy -= 0.012 * (1 - progress) * source.uniform(0, 1)
            loss = 2.3 * math.exp(-4.2 * progress**0.7) * (1.25 - 0.25 * size)
            step = epoch * NUM_STEPS
            records.append(
                {
                    "kind": "epoch",
                    "epoch": epoch,
                    "stage": stage,
                    "step": step,
                    "lr": 0.05 * (1 + math.cos(math.pi * progress)),
                    "train_loss": loss * source.uniform(0.96, 1.04),
                    "train_accuracy": accuracy + 0.01,
                    "test_loss": loss + 0.1,
                    "test_accuracy": accuracy,
                    "seconds": seconds,
                    "cpu_seconds": 0.8 * seconds,
                    "flops": flops,
                    "flops_share": flops / (3 * 5000 * FULL_FLOPS * total),
                    "batch_size": 128,
                }
            )
            if not fixed:
                records.append(_rates(step, stage, born))
        if stage + 1 < the_plan["stages"]:
            born.append(epoch * NUM_STEPS)
            records.append(
                {
                    "kind": "growth",
                    "stage": stage + 1,
                    "step": epoch * NUM_STEPS,
                    "epoch": epoch,
                    "seconds": source.uniform(0.05, 0.15),
                    "cpu_seconds": 0.25,
                    "change": source.uniform(1e-7, 3e-7) if stage else None,
                    "parameters": the_plan["parameters"][stage + 1],
                    "widths": the_plan["widths"][stage + 1],
                }
            )
    return records


def _rates(step: int, stage: int, born: list[int]) -> dict[str, Any]:
    factors = {}
    for index in range(7):
        factors[f"layer{index}.conv.weight"] = [
            1.0 if not ring else 1 + (2.5 + index / 3) / ring * math.exp(-(step - start) / 400)
            for ring, start in enumerate(born)
        ]
    factors["layer0.bn.weight"] = factors["layer0.conv.weight"]
    factors["head.bias"] = [1.0]
    return {"kind": "rates", "step": step, "stage": stage, "factors": factors}


def config(fixed: bool, seed: int, name: str = "demo", **settings: Any) -> dict[str, Any]:
    return {
        "name": name,
        "fixed": fixed,
        "seed": seed,
        "settings": {"seed": seed, "lr": 0.1, "optimizer": "sgd", "weight_decay": 5e-4, **settings},
        "plan": plan(fixed),
        "machine": "AMD EPYC, 2 cores",
        "versions": {"torch": "2.13.0", "python": "3.11"},
    }


def write_run(
    folder: Path,
    fixed: bool = False,
    seed: int = 0,
    *,
    quality: float = 0.0,
    num_epochs: int = 10**6,
    name: str = "demo",
    records: list[dict[str, Any]] | None = None,
    **settings: Any,
) -> Path:
    """Writes a run directory; it has a result if all epochs are done."""
    folder.mkdir(parents=True)
    written = metrics(fixed, seed, quality, num_epochs) if records is None else records
    (folder / "config.json").write_text(json.dumps(config(fixed, seed, name, **settings)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in written))
    epochs = [r for r in written if r["kind"] == "epoch"]
    if len(epochs) == sum(EPOCHS):
        keys = ("test_accuracy", "test_loss", "seconds", "cpu_seconds", "flops", "flops_share")
        result = {key: epochs[-1].get(key) for key in keys}
        result |= {"steps": epochs[-1]["step"], "epochs": len(epochs), "parameters": 272_474}
        (folder / "result.json").write_text(json.dumps(result))
    return folder


# Of data that grows: accuracy on all classes seen, and on those that each stage brought. Means and deviations
# over the three seeds can be told by heart: a seed is one point apart from the next.
PARTS = {
    "plain": [[0.90], [0.70, 0.80], [0.50, 0.60, 0.84], [0.40, 0.50, 0.60, 0.82]],
    "osgd": [[0.90], [0.80, 0.80], [0.72, 0.70, 0.80], [0.65, 0.62, 0.66, 0.80]],
}
SEEN = {"plain": [0.90, 0.75, 0.66, 0.60], "osgd": [0.90, 0.80, 0.75, 0.70]}


def stage_records(
    kind: str, seed: int, num_stages: int = 4, **changes: Any
) -> list[dict[str, Any]]:
    """The ends of stages at which 20, 30, 40, 50 classes were seen."""
    off = 0.01 * (seed - 1)
    return [
        {
            "kind": "stage",
            "stage": t,
            "step": 600 * (t + 1),
            "examples": 1000 * (2 + t),
            "classes": 20 + 10 * t,
            "accuracy": SEEN[kind][t] + off,
            "parts": [value + off for value in PARTS[kind][t]],
            "flops": (t + 1) * 0.25 * 3 * 5000 * FULL_FLOPS * sum(EPOCHS),
            "seconds": 10.0 * (t + 1),
            "cpu_seconds": 8.0 * (t + 1),
            **changes,
        }
        for t in range(num_stages)
    ]


def write_stream(
    folder: Path,
    kind: str,
    seed: int,
    stages: list[dict[str, Any]] | None = None,
    num_epochs: int = 10**6,
    **result: Any,
) -> Path:
    """Writes a run on data that grows; its result says what it forgot, if it is finished."""
    ends = stage_records(kind, seed) if stages is None else stages
    records = metrics(False, seed, num_epochs=num_epochs)
    write_run(folder, False, seed, records=[*records, *ends], osgd=kind)
    made = config(False, seed, osgd=kind) | {"metrics": stored([ACCURACY, LOSS, FORGETTING])}
    (folder / "config.json").write_text(json.dumps(made))
    if (folder / "result.json").exists():
        found = json.loads((folder / "result.json").read_text()) | result
        (folder / "result.json").write_text(json.dumps(found))
    return folder
