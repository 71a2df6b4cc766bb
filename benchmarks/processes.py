"""One growth under DistributedDataParallel against the same growth in one process, and one broadcast.

    python -m benchmarks.processes [--repeats 7] [--json]

Every rank does all three in turns: it grows a bare model of its own, grows the same one inside of
DistributedDataParallel together with the others, and broadcasts the grown parameters from rank 0. Seconds are
those of a rank's processor, so that ranks that share a core do not wait for each other in them.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel

import growthring as gr
from benchmarks.measure import Result, Sample, Table, main, parser, ratio, show
from tests.distributed_helpers import Processes

RANKS = (2, 4)


class Residual(nn.Module):
    """A block as those of a GPT, without the attention: what a growth costs is a matter of the weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def network(width: int, depth: int) -> nn.Module:
    torch.manual_seed(0)
    blocks = [Residual(width) for _ in range(depth)]
    return nn.Sequential(nn.Linear(64, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 64))


NETWORKS = {"4 blocks of width 512": (512, 4), "8 blocks of width 768": (768, 8)}


def spent(act: Callable[[], Any]) -> float:
    gc.collect()
    started = time.process_time()
    act()
    return time.process_time() - started


def on_rank(rank: int, name: str, repeats: int) -> list[tuple[float, float, float]]:
    """Seconds of a growth alone, of one together, and of a broadcast; each repeat on fresh copies."""
    plan = gr.plan(network(*NETWORKS[name]), torch.randn(2, 64), total_steps=10)
    seed = plan.build_seed()
    taken = []
    for _ in range(repeats + 1):
        turns = []
        for wrap in (lambda model: model, DistributedDataParallel):
            model = copy.deepcopy(seed)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            generator = torch.Generator().manual_seed(0)
            trained = wrap(model)
            grower = gr.Grower(trained, plan, optimizer, generator=generator)
            trained(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()
            turns.append(spent(partial(grower.grow, measure=False)))
            grower.finish()
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        turns.append(spent(partial(dist.broadcast, flat, 0)))
        taken.append(tuple(turns))
    return taken[1:]


def run(args: argparse.Namespace) -> Result:
    table = Table(
        "A growth with AdamW, CPU seconds of one rank",
        ("network", "parameters", "ranks", "alone, ms", "together, ms", "one broadcast, ms",
         "together ÷ alone", "together ÷ (2 × alone + broadcast), at most 1"),
    )  # fmt: skip
    data: dict[str, Any] = {}
    this = importlib.import_module("benchmarks.processes")  # where the ranks find it, too
    for name, sizes in NETWORKS.items():
        count = sum(p.numel() for p in network(*sizes).parameters())
        for ranks in RANKS:
            processes = Processes(ranks)
            try:
                first = processes.run(this.on_rank, name, args.repeats)[0]
            finally:
                processes.stop()
            alone, together, sent = (Sample(tuple(v)) for v in zip(*first, strict=True))
            bound = Sample(tuple(2 * a + s for a, s in zip(alone.values, sent.values, strict=True)))
            held = ratio(together, bound)
            table.rows.append(
                (name, f"{count / 1e6:.1f}M", str(ranks), *(show(s, 1e3, 1) for s in (alone, together, sent)),
                 ratio(together, alone).show(2), f"**{held.show(2)}**")
            )  # fmt: skip
            data[f"{name}, {ranks} ranks"] = {
                "alone": alone.as_dict(), "together": together.as_dict(), "broadcast": sent.as_dict(),
            }  # fmt: skip
    table.notes.append("`Grower.grow(measure=False)`; gloo on one machine.")
    about = (
        "`Grower.grow` inside of DistributedDataParallel, on processes joined by gloo, against the same growth "
        "of a bare model on each of them, and against one broadcast of the grown parameters, in turns."
    )
    return Result("Processes", about, [table], data)


if __name__ == "__main__":
    main(run, parser(__doc__ or "", repeats=7))
