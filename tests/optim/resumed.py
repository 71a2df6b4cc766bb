"""The second half of a run, in a process of its own: `python resumed.py checkpoint result`."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch import nn

import growthring as gr

STAGES, STEPS, TOTAL = 4, 4, 16
MIDDLE = 2 * STEPS + 2  # within stage 2
OWN: dict[str, Any] = {"ring_schedule": "own", "total_steps": TOTAL}
KINDS: dict[str, Any] = {
    "sgd": lambda p: gr.optim.SGD(p, lr=0.05, momentum=0.9, state_at_growth="keep"),
    "sgd own": lambda p: gr.optim.SGD(p, lr=0.05, momentum=0.9, **OWN),
    "adam": lambda p: gr.optim.Adam(p, lr=0.01, amsgrad=True),
    "avagrad": lambda p: gr.optim.AvaGrad(p, lr=0.05, **OWN),
    "wrapped": lambda p: gr.optim.with_rings(torch.optim.AdamW(p, lr=0.01), **OWN),
    "torch": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def net() -> nn.Module:
    g = torch.Generator().manual_seed(1)
    model = nn.Sequential(
        nn.Linear(5, 36),
        nn.LayerNorm(36),
        nn.ReLU(),
        nn.Linear(36, 36),
        nn.ReLU(),
        nn.Linear(36, 3),
    )
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.copy_(torch.randn(p.shape, generator=g) / p.shape[1] ** 0.5)
    return model


@cache
def plan() -> gr.Plan:
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(2))
    return gr.plan(net(), x, stages=STAGES, growth=None, round_to=1, preset="paper")


class Run:
    """A model, its growth, its optimizer and its schedule."""

    def __init__(self, kind: str) -> None:
        self.model = plan().build_seed()
        self.optimizer = KINDS[kind](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, TOTAL)
        generator = torch.Generator().manual_seed(4)
        self.grower = gr.Grower(self.model, plan(), self.optimizer, generator=generator)
        self.parts = (self.grower, self.model, self.optimizer, self.scheduler)

    def go(self, first: int, last: int) -> None:
        """Steps `first` to `last` of the whole run; each stage has STEPS of them."""
        for n in range(first, last):
            if n and n % STEPS == 0:
                self.grower.grow()
            self.grower.advance((n % STEPS) / STEPS)
            g = torch.Generator().manual_seed(n)
            x, y = torch.randn(8, 5, generator=g), torch.randn(8, 3, generator=g)
            self.optimizer.zero_grad()
            (self.model(x) - y).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()

    def state(self) -> list[Any]:
        return [part.state_dict() for part in self.parts]

    def load(self, states: list[Any]) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def main(checkpoint: str, result: str) -> None:
    saved = torch.load(checkpoint, weights_only=True)
    states = {}
    for kind, state in saved.items():
        run = Run(kind)
        run.load(state)
        run.go(MIDDLE, TOTAL)
        states[kind] = run.state()
    torch.save(states, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
