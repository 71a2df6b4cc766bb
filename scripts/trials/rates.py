"""Which rates and which optimizer state for new rings? Short runs of a grown ResNet-8 on CIFAR-10.

python -m scripts.trials.rates --data DIR [--only NAME …] [--seeds 0 1 2] [--out results/rates]

Every run writes one JSON file as soon as it is done; runs whose file exists are skipped. The table
(docs/rates.md) is written by `python -m scripts.trials.rates --table`.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

import torch

import growthring as gr
from growthring.zoo import resnet8
from scripts.trials.cifar import augment, load_cifar

EPOCHS = (2, 2, 2, 3, 4, 4, 5, 7, 11)  # floor(2 · 1.2^t), the last stage takes the rest of 40
SETTING = {"images": 10_000, "side": 16, "batch": 128, "epochs": sum(EPOCHS), "stages": len(EPOCHS)}

SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "output_rate": False}
ADAM = {"lr": 3e-3, "weight_decay": 1e-4}
NONE: dict[str, Any] = {"rate_adaptation": None}
OWN: dict[str, Any] = {"ring_schedule": "own"}

# name -> optimizer, its options, what else differs
TRIALS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sgd-growing-only": ("SGD", SGD | NONE, {"variance_transfer": "off"}),
    "sgd-vt": ("SGD", SGD | NONE, {}),
    "sgd-vt-ra": ("SGD", SGD, {}),
    "sgd-vt-ra-output": ("SGD", SGD | {"output_rate": True}, {}),
    "sgd-vt-output": ("SGD", SGD | NONE | {"output_rate": True}, {}),
    "sgd-vt-ra-max": ("SGD", SGD | {"rate_adaptation": "max"}, {}),
    "sgd-vt-own": ("SGD", SGD | NONE | OWN, {}),
    "sgd-vt-ra-own": ("SGD", SGD | OWN, {}),
    "sgd-vt-keep": ("SGD", SGD | NONE | {"state_at_growth": "keep"}, {}),
    "sgd-vt-rescale": ("SGD", SGD | NONE | {"state_at_growth": "rescale"}, {}),
    "adam-vt-torch": ("torch.Adam", ADAM, {}),
    "adam-vt-reset": ("Adam", ADAM | NONE | {"state_at_growth": "reset"}, {}),
    "adam-vt-ages": ("Adam", ADAM | NONE, {}),
    "adam-vt-ages-rescale": ("Adam", ADAM | NONE | {"state_at_growth": "rescale"}, {}),
    "adam-vt-ages-norm": ("Adam", ADAM, {}),
    "adam-vt-ages-own": ("Adam", ADAM | NONE | OWN, {}),
    "avagrad-vt-ages": ("AvaGrad", {"lr": 0.5, "eps": 10.0, "weight_decay": 5e-4} | NONE, {}),
    "avagrad-vt-ages-norm": ("AvaGrad", {"lr": 0.5, "eps": 10.0, "weight_decay": 5e-4}, {}),
}


def run(name: str, seed: int, data: dict[str, torch.Tensor]) -> dict[str, Any]:
    """One training; returns its test accuracy, costs and settings."""
    kind, options, growth = TRIALS[name]
    generator = torch.Generator().manual_seed(seed)
    model = resnet8(num_classes=10, generator=generator)
    plan = gr.plan(model, data["train_images"][:2], preset="paper", stages=len(EPOCHS))
    seed_model = plan.build_seed()
    steps_per_epoch = math.ceil(len(data["train_images"]) / SETTING["batch"])
    total = steps_per_epoch * sum(EPOCHS)
    if kind.startswith("torch."):
        optimizer: Any = getattr(torch.optim, kind.removeprefix("torch."))(
            seed_model.parameters(), **options
        )
    else:
        optimizer = getattr(gr.optim, kind)(seed_model.parameters(), total_steps=total, **options)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    grower = gr.Grower(
        seed_model,
        plan,
        optimizer=optimizer,
        generator=generator,
        **{"variance_transfer": "paper", **growth},
    )
    loss_function = torch.nn.CrossEntropyLoss()
    started = time.perf_counter()
    curve = []
    for stage, epochs in enumerate(EPOCHS):
        for _ in range(epochs):
            seed_model.train()
            order = torch.randperm(len(data["train_images"]), generator=generator)
            for index in order.split(SETTING["batch"]):
                images = augment(data["train_images"][index], generator)
                loss = loss_function(seed_model(images), data["train_labels"][index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
        curve.append(accuracy(seed_model, data))
        if stage < len(EPOCHS) - 1:
            grower.grow()
    return {
        "name": name,
        "seed": seed,
        "accuracy": curve[-1],
        "accuracy_per_stage": curve,
        "train_loss": float(loss.detach()),
        "seconds": time.perf_counter() - started,
        "setting": SETTING,
        "machine": f"{platform.machine()}, {platform.system()}, torch {torch.__version__}, 1 thread",
    }


@torch.no_grad()
def accuracy(model: torch.nn.Module, data: dict[str, torch.Tensor]) -> float:
    """Test accuracy in percent."""
    model.eval()
    right = 0
    for images, labels in zip(
        data["test_images"].split(1000), data["test_labels"].split(1000), strict=True
    ):
        right += int((model(images).argmax(1) == labels).sum())
    return 100 * right / len(data["test_labels"])


def page(folder: Path) -> str:
    """The results as a page of Markdown."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        found.setdefault(result["name"], []).append(result)
    setting, machine = (
        next(iter(found.values()))[0]["setting"],
        next(iter(found.values()))[0]["machine"],
    )
    lines = [
        "# Rates and optimizer state for new rings: trials",
        "",
        "Written by `python -m scripts.trials.rates --table` from `results/rates`; do not edit.",
        f"CPU-scale trials, not the paper's setting: ResNet-8 (16-32-64), CIFAR-10 with {setting['images']:,} "
        f"training images averaged down to {setting['side']}×{setting['side']}, {setting['epochs']} epochs, "
        f"{setting['stages']} stages from a quarter of the width, batch {setting['batch']}, cosine; "
        "SGD lr 0.1, momentum 0.9, weight decay 5e-4; Adam lr 3e-3, weight decay 1e-4. "
        f"Machine: {machine}. Test accuracy in %, mean ± standard deviation over seeds.",
        "",
        "| trial | optimizer | options | accuracy | seeds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, (kind, options, growth) in TRIALS.items():
        if name not in found:
            continue
        values = torch.tensor([r["accuracy"] for r in found[name]], dtype=torch.float64)
        spread = f" ± {values.std():.2f}" if len(values) > 1 else ""
        base = SGD if kind == "SGD" else ADAM
        shown = {k: v for k, v in {**options, **growth}.items() if base.get(k, "-") != v}
        text = ", ".join(f"{k}={v}" for k, v in shown.items()) or "defaults"
        seeds = ", ".join(str(r["seed"]) for r in found[name])
        lines.append(f"| {name} | {kind} | {text} | {values.mean():.2f}{spread} | {seeds} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs what has not been run yet."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, help="folder that holds cifar-10-batches-py")
    options.add_argument("--only", nargs="+", choices=sorted(TRIALS), default=list(TRIALS))
    options.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options.add_argument("--out", type=Path, default=Path("results/rates"))
    options.add_argument(
        "--table", action="store_true", help="write docs/rates.md from what there is"
    )
    args = options.parse_args()
    if args.table:
        Path("docs/rates.md").write_text(page(args.out), encoding="utf-8")
        return
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    data = load_cifar(args.data, SETTING["images"], SETTING["side"])
    for seed in args.seeds:
        for name in args.only:
            path = args.out / f"{name}-{seed}.json"
            if path.exists():
                continue
            result = run(name, seed, data)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(result, indent=1) + "\n")
            part.replace(path)
            print(
                f"{name} seed {seed}: {result['accuracy']:.2f} % in {result['seconds']:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
