"""Dynamic OSGD: what it adds to a training step of ResNet-18, and what its pass costs.

    python -m benchmarks.osgd [--repeats 9] [--json]

Steps with and without it take turns, on the same weights and batch; both are full-size ResNet-18 with a batch of
128 images of CIFAR's shape. They are compared in processor time, as a busy machine interrupts long work.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import growthring as gr
from benchmarks.measure import Result, Sample, Table, main, parser, ratio, show, verdict
from growthring import zoo

TARGET = 1.05
MOMENTUM = {"lr": 1e-4, "momentum": 0.9, "weight_decay": 5e-4}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "torch SGD": lambda params: torch.optim.SGD(params, **MOMENTUM),
    "gr.optim.AdamW": lambda params: gr.optim.AdamW(params, lr=1e-5),
}


def cpu_seconds(action: Callable[[], Any]) -> float:
    """Processor time of one call."""
    started = time.process_time()
    action()
    return time.process_time() - started


class Loop:
    """A model, its optimizer and a batch; with dynamic OSGD or without."""

    def __init__(self, model: nn.Module, name: str, batch: tuple[Tensor, Tensor]) -> None:
        self.model, self.batch = model, batch
        self.optimizer = OPTIMIZERS[name](model.parameters())

    def step(self) -> None:
        self.optimizer.zero_grad()
        inputs, targets = self.batch
        nn.functional.cross_entropy(self.model(inputs), targets).backward()
        self.optimizer.step()


def run(args: argparse.Namespace) -> Result:
    """Times both."""
    table = Table(
        "A training step of ResNet-18, batch 128, with dynamic OSGD and without",
        ["optimizer", "without, CPU ms", "with, CPU ms", "ratio", "target", "verdict"],
    )
    generator = torch.Generator().manual_seed(args.seed)
    images = torch.randn(128, 3, 32, 32, generator=generator)
    labels = torch.randint(100, (128,), generator=generator)
    model = zoo.resnet18(num_classes=100, generator=generator)
    data: dict[str, Any] = {}
    for name in OPTIMIZERS:
        plain = Loop(copy.deepcopy(model), name, (images, labels))
        ours = Loop(copy.deepcopy(model), name, (images, labels))
        osgd = gr.DynamicOSGD(ours.model, ours.optimizer, nn.functional.cross_entropy)
        osgd.remember([(images, labels)])
        osgd.begin_stage()

        def with_osgd(ours: Loop = ours, osgd: gr.DynamicOSGD = osgd) -> None:
            ours.step()
            osgd.advance(0.5)

        actions = [plain.step, with_osgd]
        found: list[list[float]] = [[], []]
        for i in range(args.repeats + 1):
            for j in (0, 1) if i % 2 else (1, 0):
                found[j].append(cpu_seconds(actions[j]))
        base, time_with = (Sample(tuple(values[1:])) for values in found)
        factor = ratio(time_with, base)
        projection = Sample(tuple(cpu_seconds(osgd.project) for _ in range(args.repeats)))
        row = [name, show(base, 1e3, 0), show(time_with, 1e3, 0), f"**{factor.show(3)}**"]
        table.rows.append([*row, *verdict(factor, TARGET)])
        table.notes.append(f"{name}: the projection alone takes {show(projection, 1e3, 1)} CPU ms.")
        samples = {"without": base, "with": time_with, "ratio": factor, "projection": projection}
        data[name] = {key: sample.as_dict() for key, sample in samples.items()}
    about = (
        "The gradients of each step lose their part along the old gradient (two passes over the parameters). The "
        "pass at the end of a stage is not in it: that is as long as an epoch, and results count it."
    )
    return Result("Dynamic OSGD", about, [table], data)


if __name__ == "__main__":
    main(run, parser("Times dynamic OSGD against a plain step.", repeats=9))
