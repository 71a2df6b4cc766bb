"""Costs by the shapes of batches: as torch counts them, also of shapes that were not seen before."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import growthring.train.shapes as shapes_module
from growthring import zoo
from growthring.data.batch import examples_in
from growthring.train import Silence, Trainer
from growthring.train.shapes import ShapeCosts, shape_of
from tests.train.runs import translation


def sentences(count, source, target):
    tokens = [torch.ones(count, n, dtype=torch.int64) for n in (source, target)]
    return (tokens[0], tokens[1], torch.zeros(count, source, dtype=torch.bool)), None


def transformer():
    sizes = {"d_model": 8, "num_heads": 2, "d_embed": 4, "num_encoder_layers": 1}
    return zoo.Transformer(20, 20, **sizes, num_decoder_layers=1, dropout=0.0)


def counted(model, inputs):
    """FLOPs of one of two examples, as torch counts them."""
    with (
        FlopCounterMode(display=False) as counter,
        nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
    ):
        model.train()(*inputs)
    return counter.get_total_flops() / examples_in((inputs, None))


@pytest.fixture
def calls(monkeypatch):
    """How often a shape is counted."""
    real, found = shapes_module.footprint, []

    def footprint(model, inputs, runs):
        found.append(shape_of(inputs, 2))
        return real(model, inputs, runs=runs)

    monkeypatch.setattr(shapes_module, "footprint", footprint)
    return found


def costs_of(model, example):
    return ShapeCosts(lambda: model, example[0], counted(model, example[0]))


def cost(costs, batch):
    """Of one example of a batch."""
    return costs.flops(batch, shape_of(batch[0], examples_in(batch)))


def test_shapes_that_were_not_seen_cost_what_torch_counts(calls):
    model = transformer()
    costs = costs_of(model, sentences(2, 12, 10))
    seen = [(12, 10), (5, 9), (9, 5), (3, 3), (20, 14), (7, 16), (11, 2), (2, 30), (6, 6)]
    for source, target in seen:
        batch = sentences(2, source, target)
        assert cost(costs, batch) == counted(model, batch[0])
    known = len(calls)
    assert known < len(seen)
    for source, target in ((40, 33), (1, 1), (2, 50), (31, 4)):
        batch = sentences(3, source, target)
        assert cost(costs, batch) == counted(model, batch[0])
    assert len(calls) == known  # they follow from the others


def test_one_length_that_varies():
    model = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    example = (torch.ones(2, 5, 8),), None
    costs = costs_of(model, example)
    for length in (5, 3, 9, 2, 17, 30, 4, 64):
        batch = (torch.ones(2, length, 8),), None
        assert cost(costs, batch) == counted(model, batch[0])


class Steps(nn.Module):
    """Its FLOPs are no polynomial of the length: words are looked at in blocks of four."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        length = -(-x.shape[1] // 4) * 4
        return self.layer(nn.functional.pad(x, (0, 0, 0, length - x.shape[1])))


def test_where_there_is_no_law_every_shape_is_counted(calls):
    model = Steps()
    example = (torch.ones(2, 5, 3),), None
    costs = costs_of(model, example)
    lengths = [5, 1, 2, 3, 4, 6, 7, 9, 10, 13, 14, 18, 23, 31]
    for length in lengths:
        batch = (torch.ones(2, length, 3),), None
        assert cost(costs, batch) == counted(model, batch[0])
    assert len(calls) == len(lengths) - 1
    two, seven = (((torch.ones(n, 31, 3),), None) for n in (2, 7))
    assert cost(costs, two) == cost(costs, seven)
    assert len(calls) == len(lengths) - 1  # a known one is not counted again


def test_a_shape_of_another_kind_is_counted(calls):
    """The law was found where the mask was as long as the source; another mask is not of it."""
    model = transformer()
    costs = costs_of(model, sentences(2, 12, 10))
    for source, target in itertools.product((3, 5, 8), (4, 7, 9)):
        cost(costs, sentences(2, source, target))
    known = len(calls)
    (source, target, mask), _ = sentences(2, 6, 6)
    assert cost(costs, ((source, target, mask), None)) and len(calls) == known
    batch = (source, target, mask[:, :1]), None  # spread over all places
    assert cost(costs, batch) == counted(model, batch[0]) and len(calls) == known + 1
    batch = (source, target), None
    assert cost(costs, batch) == counted(model, batch[0]) and len(calls) == known + 2


def test_an_example_costs_the_same_in_a_batch_of_any_size():
    assert shape_of(sentences(4, 3, 5)[0], 4) == shape_of(sentences(9, 3, 5)[0], 9) == (3, 5, 3)


def test_a_run_costs_what_its_batches_cost(tmp_path):
    """Padding included, at each stage with that stage's model."""
    trainer = Trainer(translation(), tmp_path, progress=Silence())
    spent, full = [], []
    models = [trainer.plan.empty_model(t).to_empty(device="cpu") for t in range(2)]
    step = trainer._step

    def counting(batch):
        step(batch)
        count = examples_in(batch)
        spent.append(count * counted(models[trainer.totals.stage], batch[0]))
        full.append(count * counted(models[-1], batch[0]))

    trainer._step = counting
    result = trainer.fit()
    assert len(spent) == trainer.total_steps == result.steps
    assert result.flops == 3 * sum(spent)
    assert result.flops_share == pytest.approx(sum(spent) / sum(full))


@pytest.mark.parametrize(
    ("met", "most"),
    [
        ([(n, n) for n in range(6, 26, 2)], 5),  # batches of one length: a law of one variable
        ([(n, n + 1 + n % 3) for n in range(6, 17)], 8),  # lengths that differ: of two
    ],
)
def test_after_some_shapes_the_others_follow(met, most, calls):
    model = transformer()
    costs = costs_of(model, sentences(2, 18, 17))
    found = {lengths: cost(costs, sentences(2, *lengths)) for lengths in met}
    assert 0 < len(calls) <= most < len(met)
    for lengths in met[-2:]:
        assert found[lengths] == counted(model, sentences(2, *lengths)[0])
