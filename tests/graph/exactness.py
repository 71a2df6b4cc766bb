"""Grows a model through all stages and compares it with itself before, in both modes, on fresh inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import growthring as gr
from growthring.graph.isolation import untouched
from growthring.graph.resize import copy_with
from growthring.graph.trace import output_tensors, split_inputs
from tests.growth_contract import cast, distance, perturb

WAYS: tuple[dict[str, Any], ...] = (
    {"variance_transfer": "off"},
    {"variance_transfer": "preserving"},
    {"method": "net2net"},
)


def outputs(model: nn.Module, inputs: Any, training: bool) -> list[torch.Tensor]:
    """What the model returns in one mode; the same random numbers (dropout) each time, buffers kept."""
    args, kwargs = split_inputs(inputs)
    model.train(training)
    with torch.no_grad(), torch.random.fork_rng(), untouched(model):
        torch.manual_seed(0)
        return [t.clone() for t in output_tensors(model(*args, **kwargs))]


def grown_exactly(
    plan: gr.Plan,
    fresh: Sequence[Any] = (),
    ways: Sequence[dict[str, Any]] = WAYS,
    training: bool = True,
    tolerance: float = 1e-12,
) -> nn.Module:
    """Grows a perturbed seed to its full size in every way; asserts that nothing changes; returns the last one."""
    inputs = [plan.example_inputs, *(cast(x, torch.float64) for x in fresh)]
    for way in ways:
        model = plan.build_seed()
        perturb(model)
        generator = torch.Generator().manual_seed(3)
        grower = gr.Grower(model, plan, noise=0.0, generator=generator, **way)
        modes = (False, True) if training else (False,)
        while not grower.is_full:
            cases = [(x, mode) for x in inputs for mode in modes]
            before = [outputs(model, *case) for case in cases]
            report = grower.grow()
            assert report.groups, "nothing grew"
            after = [outputs(model, *case) for case in cases]
            for (_, mode), olds, news in zip(cases, before, after, strict=True):
                for old, new in zip(olds, news, strict=True):
                    found = distance(old, new)
                    assert found <= tolerance, f"{way}, training={mode}: {found:.1e}"
            assert report.change is not None and report.change.relative <= tolerance
            perturb(model, seed=10 + grower.stage)
        grower.finish()
        shapes = {n: tuple(t.shape) for n, t in plan.model.state_dict().items()}
        assert {n: tuple(t.shape) for n, t in model.state_dict().items()} == shapes
        twin = copy_with(plan.model, {})
        twin.load_state_dict(model.state_dict())
        for old, new in zip(
            outputs(twin, inputs[0], False), outputs(model, inputs[0], False), strict=True
        ):
            assert distance(old, new) <= 1e-12
    return model


def trains(model: nn.Module, inputs: Any, steps: int = 3, unused: Sequence[str] = ()) -> None:
    """A few steps of Adam change every parameter but the unused ones, and keep everything finite."""
    model.train()
    args, kwargs = split_inputs(inputs)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for _ in range(steps):
        optimizer.zero_grad()
        found = output_tensors(model(*args, **kwargs))
        sum(t.square().mean() for t in found if t.requires_grad).backward()
        optimizer.step()
    for name, p in model.named_parameters():
        assert bool(torch.isfinite(p).all()), name
        if any(part in name for part in unused):
            continue
        assert p.grad is not None and not torch.equal(p, before[name]), name
