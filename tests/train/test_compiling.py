"""Compiled stages: what is compiled, what runs as it is, and that compiling ahead leaves a training as it was."""

import contextlib

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.train import compiling
from growthring.train.compiling import CompiledStage, compile_ahead

CPU = torch.device("cpu")


class Counting:
    """A backend of `torch.compile` that counts the programs it is given, and their widths."""

    def __init__(self) -> None:
        self.widths = []

    def __call__(self, graph, inputs):
        self.widths.append(sorted({tuple(i.shape) for i in inputs if isinstance(i, torch.Tensor)}))
        return graph.forward


def normed() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
    )


def planned(**options) -> gr.Plan:
    torch.manual_seed(0)
    settings = {"stages": 3, "total_steps": 30, "batch_size": 4}
    return gr.plan(normed(), torch.randn(2, 4), **(settings | options))


def test_each_stage_is_one_program_whatever_batches_and_fades():
    plan, backend = planned(), Counting()
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    for stage in range(3):
        forward = CompiledStage(model, 4, grower, backend)
        for step in range(6):
            grower.advance(min(1.0, step / 4))
            forward(torch.randn(3 if step == 5 else 4, 4)).sum().backward()
        assert len(backend.widths) == stage + 1
        if stage < 2:
            grower.finish()
            grower.grow()


def test_norms_that_fade_in_are_not_compiled():
    plan, backend = planned(), Counting()
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    grower.grow()
    forward = CompiledStage(model, 4, grower, backend)
    assert grower.fading_norms
    x = torch.randn(4, 4)
    model.eval()
    assert torch.equal(forward(x), model(x)) and not backend.widths
    grower.finish()
    forward(x)
    assert len(backend.widths) == 1


def test_all_stages_are_compiled_ahead_at_their_own_widths_and_batch_sizes():
    plan, backend = planned(batch_size=[8, 6, 4]), Counting()
    assert compile_ahead(plan, range(3), CPU, contextlib.nullcontext, backend) == []
    for found, width, batch in zip(backend.widths, plan.widths("0"), (8, 6, 4), strict=True):
        assert (width, 4) in found and (batch, 4) in found
    resumed = Counting()
    compile_ahead(plan, [2], CPU, contextlib.nullcontext, resumed)
    assert resumed.widths == backend.widths[2:], "a resumed run compiles what is left"


def test_the_program_of_a_stage_is_the_one_that_was_made_ahead():
    """Or inductor would not find it: the same operators on tensors of the same shapes and strides."""
    plan = planned()
    ahead, own = [], []

    def into(found):
        def backend(graph, inputs):
            kinds = [(tuple(i.shape), i.stride(), i.dtype, i.requires_grad) for i in inputs]
            found.append((graph.print_readable(print_output=False), kinds))
            return graph.forward

        return backend

    compile_ahead(plan, range(3), CPU, contextlib.nullcontext, into(ahead))
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    for stage in range(3):
        CompiledStage(model, 4, grower, into(own))(torch.randn(4, 4)).sum().backward()
        if stage < 2:
            grower.grow()
            grower.finish()
    assert own == ahead


def test_compiling_ahead_leaves_random_numbers_and_the_model():
    plan = planned()
    before = {n: t.clone() for n, t in plan.model.state_dict().items()}
    state = torch.get_rng_state()
    compile_ahead(plan, range(3), CPU, contextlib.nullcontext, "eager")
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(t, before[n]) for n, t in plan.model.state_dict().items())


def test_a_stage_that_cannot_be_compiled_ahead_is_told():
    def backend(graph, inputs):
        raise RuntimeError("no compiler")

    notes = compile_ahead(planned(), [1, 2], CPU, contextlib.nullcontext, backend)
    assert len(notes) == 2 and notes[0].startswith("stage 1 cannot be compiled ahead: ")


def test_channels_last_is_kept_from_inductor_on_a_cpu(monkeypatch):
    seen = {}
    monkeypatch.setattr(torch, "compile", lambda model, **options: seen.update(options) or model)
    CompiledStage(normed(), 4)
    assert seen["options"] == {"layout_optimization": False} and seen["dynamic"] is False


@pytest.mark.parametrize(("cache", "disabled"), [(True, False), (False, False), (True, True)])
def test_without_a_cache_nothing_is_compiled_ahead(cache, disabled):
    from torch._inductor import config

    with config.patch({"fx_graph_cache": cache, "force_disable_caches": disabled}):
        assert compiling.keeps_compiled() == (cache and not disabled)
