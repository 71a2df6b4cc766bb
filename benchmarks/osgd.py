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

    def passes(self) -> None:
        self.optimizer.zero_grad()
        inputs, targets = self.batch
        nn.functional.cross_entropy(self.model(inputs), targets).backward()


def run(args: argparse.Namespace) -> Result:
    """Times both."""
    table = Table(
        "A training step of ResNet-18, batch 128, with dynamic OSGD and without",
        [
            "optimizer",
            "passes",
            "optimizer's step",
            "the same with it",
            "ratio",
            "target",
            "verdict",
        ],
    )
    generator = torch.Generator().manual_seed(args.seed)
    images = torch.randn(128, 3, 32, 32, generator=generator)
    labels = torch.randint(100, (128,), generator=generator)
    model = zoo.resnet18(num_classes=100, generator=generator)
    data: dict[str, Any] = {}
    for name in OPTIMIZERS:
        loops = [Loop(copy.deepcopy(model), name, (images, labels)) for _ in range(2)]
        osgd = gr.DynamicOSGD(loops[1].model, loops[1].optimizer, nn.functional.cross_entropy)
        osgd.remember([(images, labels)])
        osgd.begin_stage()
        passes: list[float] = []
        steps: list[list[float]] = [[], []]
        for i in range(args.repeats + 1):
            spent = []
            for j in (0, 1) if i % 2 else (1, 0):
                spent.append(cpu_seconds(loops[j].passes))
                steps[j].append(cpu_seconds(loops[j].optimizer.step))
            osgd.advance(0.5)
            passes.append(sum(spent) / 2)
        common, plain, ours = (Sample(tuple(v[1:])) for v in (passes, *steps))
        whole = [
            Sample(tuple(a + b for a, b in zip(common.values, step.values, strict=True)))
            for step in (plain, ours)
        ]
        factor = ratio(whole[1], whole[0])
        times = (show(common, 1e3, 0), show(plain, 1e3, 1), show(ours, 1e3, 1))
        table.rows.append([name, *times, f"**{factor.show(4)}**", *verdict(factor, TARGET)])
        samples = {"passes": common, "without": plain, "with": ours, "ratio": factor}
        data[name] = {key: sample.as_dict() for key, sample in samples.items()}
    about = (
        "The gradients of each step lose their part along the old gradient, in two passes over the parameters. "
        "Forward and backward passes are the same in both and vary by more than that takes, so their mean stands "
        "for both; the optimizer's step is timed behind each. In CPU milliseconds. The pass over a stage's data at "
        "its end is not in it: it is as long as an epoch, and results count it."
    )
    return Result("Dynamic OSGD", about, [table], data)


if __name__ == "__main__":
    main(run, parser("Times dynamic OSGD against a plain step.", repeats=9))
