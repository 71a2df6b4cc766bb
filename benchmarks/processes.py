"""One growth under DistributedDataParallel against the same growth in one process, and one broadcast.

    python -m benchmarks.processes [--repeats 7] [--json]

Every rank does all three in turns: it grows a bare model of its own, grows the same one inside of
DistributedDataParallel together with the others, and broadcasts the grown parameters from rank 0. Seconds are
those of a rank's processor, so that ranks that share a core do not wait for each other in them.

Then shards, in three ways in turns: grown in place, into a new model, and by a trip to whole tensors and back.
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
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
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


def sharded(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, Residual):
            fully_shard(module)
    return fully_shard(model)


def stepped(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(2, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def shards_on_rank(rank: int, name: str, repeats: int) -> list[tuple[float, float, float]]:
    """Seconds of a growth of shards in place, of one into a new model, and of one of whole tensors and back."""
    plan = gr.plan(network(*NETWORKS[name]), torch.randn(2, 64), total_steps=10)
    whole = StateDictOptions(full_state_dict=True)

    def grown(**options: Any) -> float:
        model = sharded(plan.build_seed())
        grower = gr.Grower(model, plan, stepped(model), **options)
        taken = spent(partial(grower.grow, measure=False))
        grower.finish()
        return taken

    def there_and_back() -> float:
        model, plain = sharded(plan.build_seed()), plan.build_seed()
        optimizer, inside = stepped(model), stepped(plain)
        grower = gr.Grower(plain, plan, inside)

        def act() -> None:
            weights, moments = get_state_dict(model, optimizer, options=whole)
            set_state_dict(plain, inside, model_state_dict=weights, optim_state_dict=moments)
            grower.grow(measure=False)
            grower.finish()
            weights, moments = get_state_dict(plain, inside)
            new = sharded(plain)
            again = torch.optim.AdamW(new.parameters(), lr=1e-3)
            set_state_dict(
                new, again, model_state_dict=weights, optim_state_dict=moments, options=whole
            )

        return spent(act)

    ways = (grown, partial(grown, shard=sharded), there_and_back)
    return [tuple(way() for way in ways) for _ in range(repeats + 1)][1:]  # type: ignore[misc]


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
    shards = Table(
        "A growth of shards with AdamW on two ranks, CPU seconds of one of them",
        ("network", "parameters", "in place, ms", "into a new model, ms", "whole and back, ms",
         "new ÷ in place", "whole and back ÷ in place"),
    )  # fmt: skip
    processes = Processes(2)
    try:
        for name, sizes in NETWORKS.items():
            count = sum(p.numel() for p in network(*sizes).parameters())
            first = processes.run(this.shards_on_rank, name, args.repeats)[0]
            place, new, back = (Sample(tuple(v)) for v in zip(*first, strict=True))
            shards.rows.append(
                (name, f"{count / 1e6:.1f}M", *(show(s, 1e3, 1) for s in (place, new, back)),
                 ratio(new, place).show(2), ratio(back, place).show(2))
            )  # fmt: skip
            data[f"{name}, shards"] = {
                "in place": place.as_dict(), "new model": new.as_dict(), "whole": back.as_dict(),
            }  # fmt: skip
    finally:
        processes.stop()
    table.notes.append("`Grower.grow(measure=False)`; gloo on one machine.")
    shards.notes.append(
        "`Grower.grow(measure=False)` in place and with `shard=`; and `get_state_dict` of whole tensors, a growth "
        "of a plain model on each rank, `fully_shard`, `set_state_dict`, without making that model and its Grower."
    )
    about = (
        "`Grower.grow` inside of DistributedDataParallel, on processes joined by gloo, against the same growth "
        "of a bare model on each of them, and against one broadcast of the grown parameters, in turns."
    )
    return Result("Processes", about, [table, shards], data)


if __name__ == "__main__":
    main(run, parser(__doc__ or "", repeats=7))
