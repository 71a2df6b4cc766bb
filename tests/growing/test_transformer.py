"""The paper's Transformer keeps its outputs through all growths of its plan, for sentences with padding."""

import dataclasses

import pytest
import torch

import growthring as gr
from growthring.core.presets import preset_named
from growthring.train import RECIPES, Recipe, change
from growthring.train.setup import make_model, make_plan
from tests.growth_contract import check_contract, in_dtype

SMALL = {
    "model_options.src_vocab_size": 20,
    "model_options.tgt_vocab_size": 20,
    "model_options.num_encoder_layers": 1,
    "model_options.num_decoder_layers": 1,
    "model_options.dropout": 0.0,
    "model_options.d_model": 128,
    "model_options.d_embed": 24,
    "model_options.max_length": 16,
    "input_shape": (6, 5),
}
FULL = {**SMALL, "model_options.d_model": 512, "model_options.d_embed": 512}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def iwslt(changes) -> Recipe:
    return change(RECIPES["iwslt14-transformer"](), changes)


def by_default(changes) -> Recipe:
    """The same network as our defaults grow it: heads are added, one doubling."""
    return Recipe("r", iwslt(changes).model, iwslt(changes).model_options, data="iwslt14", epochs=8)


def padded() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three sentences of six, four and one tokens, as batches of sentences have them."""
    generator = torch.Generator().manual_seed(2)
    source, target = (torch.randint(3, 20, (3, n), generator=generator) for n in (6, 5))
    padding = torch.arange(6) >= torch.tensor([[6], [4], [1]])
    return source.masked_fill(padding, 0), target, padding


_PLANS: dict[str, gr.Plan] = {}


def planned(recipe: Recipe, key: str) -> gr.Plan:
    if key not in _PLANS:
        model = make_model(recipe, torch.Generator().manual_seed(0))
        _PLANS[key] = make_plan(recipe, model, padded())
    return _PLANS[key]


CASES = [
    ("paper", "preserving"),
    ("paper", "off"),
    ("default", preset_named("default").variance_transfer),
]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("preset", "mode"), CASES)
@pytest.mark.each(2)
def test_outputs_stay_at_every_growth_in_both_modes(preset, mode, dtype):
    recipe = {"paper": iwslt, "default": by_default}[preset](SMALL)
    plan = in_dtype(planned(recipe, preset), dtype)
    plan = dataclasses.replace(plan, example_inputs=padded())
    reports = check_contract(plan, mode, TOLERANCE[dtype], gradients=False)
    assert len(reports) == plan.num_stages - 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["preserving", "off"])
def test_outputs_stay_at_the_papers_widths(mode):
    plan = planned(iwslt(FULL), "full")
    assert [min(plan.named_widths(t).values()) for t in range(4)] == [8, 16, 32, 64]
    check_contract(plan, mode, TOLERANCE[torch.float32], gradients=False)


def test_the_plan_is_the_papers():
    """d_model 64 to 512 and heads of 8 to 64 in four stages of five epochs; embeddings keep their dimension."""
    recipe = iwslt(FULL)
    plan = make_plan(recipe, make_model(recipe, torch.Generator()))
    assert plan.num_stages == 4 and plan.epochs == (5, 5, 5, 5)
    assert recipe.plan.preset == "paper" and plan.batch_sizes == (64,) * 4
    for stage, d_model in enumerate((64, 128, 256, 512)):
        widths = plan.named_widths(stage)
        model = plan.empty_model(stage)
        assert widths["src_projection"] == widths["tgt_projection"] == d_model
        assert widths["encoder.0.feed_forward.fc1"] == 4 * d_model
        heads = {w for name, w in widths.items() if "attention" in name}
        assert heads == {d_model // 8}  # of each of the 8 heads
        assert model.src_embedding.weight.shape == (20, 512) == model.tgt_embedding.weight.shape
        assert model.src_projection.weight.shape == (d_model, 512)
        assert model.positions.shape == (16, 512)
    options = recipe.optimizer_options
    assert options["betas"] == (0.9, 0.98) and recipe.warmup_steps == 4000
    assert recipe.label_smoothing == 0.1 and recipe.plan.optimizer == "adam"
