"""A step of gr.optim on parameters that fully_shard has cut, against torch's own step on the same.

    python -m benchmarks.shards [--repeats 9] [--json]

Two ranks hold the same model in shards, with gradients. On each, in turns: torch's optimizer, ours without rate
adaptation, ours with it (one reduction for the norms of all rings), and the norms of all parameters as
DTensors find them, one reduction for each. Seconds are those of a rank's processor, as in `benchmarks.processes`.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

import growthring as gr
from benchmarks.measure import Result, Sample, Table, main, parser, ratio, show
from benchmarks.processes import Residual, network
from growthring.growing.matching import parameter_rings
from tests.distributed_helpers import Processes

RANKS, CALLS = 2, 5
NETWORKS = {"8 blocks of width 128": (128, 8), "4 blocks of width 512": (512, 4)}
SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1e-7, "momentum": 0.9, "weight_decay": 5e-4},
    "AdamW": {"lr": 1e-7},
}


def spent(act: Callable[[], Any]) -> float:
    gc.collect()
    started = time.process_time()
    for _ in range(CALLS):
        act()
    return (time.process_time() - started) / CALLS


def on_rank(rank: int, name: str, kind: str, repeats: int) -> list[tuple[float, ...]]:
    """Seconds of a step of torch's, of ours plain and adapting, and of one norm for each parameter."""
    plan = gr.plan(network(*NETWORKS[name]), torch.randn(2, 64), stages=4, start=0.25)
    model = plan.build_seed()
    grower = gr.Grower(model, plan, generator=torch.Generator().manual_seed(0))
    while not grower.is_full:
        grower.grow(measure=False)
    grower.finish()
    for module in model:
        if isinstance(module, Residual):
            fully_shard(module)
    fully_shard(model)
    model(torch.ones(2, 64)).square().mean().backward()
    rings = parameter_rings(model, plan, grower.rings)

    def ours(**options: Any) -> Optimizer:
        make: Any = getattr(gr.optim, kind)
        optimizer: Any = make(model.parameters(), **SETTINGS[kind], **options)
        optimizer.bind_rings(rings)
        return optimizer  # type: ignore[no-any-return]

    theirs = getattr(torch.optim, kind)(model.parameters(), **SETTINGS[kind])
    plain, adapting = ours(), ours(rate_adaptation="norm")

    def norms() -> list[torch.Tensor]:
        parameters: list[Any] = list(model.parameters())
        with torch.no_grad():
            return [nn.utils.get_total_norm([p]).full_tensor() for p in parameters]  # type: ignore[attr-defined]

    turns = (theirs.step, plain.step, adapting.step, norms)
    taken = [tuple(spent(turn) for turn in turns) for _ in range(repeats + 1)]
    return taken[1:]


def run(args: argparse.Namespace) -> Result:
    table = Table(
        "A step on shards, CPU milliseconds of one of two ranks",
        ("network", "tensors", "optimizer", "torch's", "ours", "ours, four rings adapting",
         "a norm each, by DTensor", "ours ÷ torch's", "adapting ÷ torch's"),
    )  # fmt: skip
    data: dict[str, Any] = {}
    this = importlib.import_module("benchmarks.shards")  # where the ranks find it, too
    processes = Processes(RANKS)
    try:
        for name, sizes in NETWORKS.items():
            count = len(list(network(*sizes).parameters()))
            for kind in SETTINGS:
                first = processes.run(this.on_rank, name, kind, args.repeats)[0]
                theirs, plain, adapting, norms = (
                    Sample(tuple(v)) for v in zip(*first, strict=True)
                )
                table.rows.append(
                    (name, str(count), kind, *(show(s, 1e3, 1) for s in (theirs, plain, adapting, norms)),
                     ratio(plain, theirs).show(2), ratio(adapting, theirs).show(2))
                )  # fmt: skip
                data[f"{name}, {kind}"] = {
                    "torch": theirs.as_dict(), "ours": plain.as_dict(), "adapting": adapting.as_dict(),
                    "norms": norms.as_dict(),
                }  # fmt: skip
    finally:
        processes.stop()
    table.notes.append("gloo on one machine; `fully_shard` of every block and of the whole.")
    about = (
        "A step of the optimizers of gr.optim on a model in shards, on two processes joined by gloo, against the "
        "step of torch's own, and against one norm for each parameter, in turns."
    )
    return Result("Shards", about, [table], data)


if __name__ == "__main__":
    main(run, parser(__doc__ or "", repeats=9))
