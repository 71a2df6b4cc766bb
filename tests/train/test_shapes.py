"""FLOPs of batches by their shapes: after some were counted the others follow, and are those that a count finds."""

import pytest
import torch

from growthring import zoo
from growthring.planning.costs import footprint
from growthring.train import shapes
from growthring.train.shapes import ShapeCosts

SIZES = {"d_model": 8, "num_heads": 2, "d_embed": 8, "num_encoder_layers": 1}


def batch(source, target):
    ones = torch.ones(2, source, dtype=torch.long), torch.ones(2, target, dtype=torch.long)
    return (*ones, torch.zeros(2, source, dtype=torch.bool)), None


@pytest.mark.parametrize(
    ("met", "most"),
    [
        ([(n, n) for n in range(6, 26, 2)], 5),  # batches of one length: a law of one variable
        ([(n, n + 1 + n % 3) for n in range(6, 17)], 8),  # lengths that differ: of two
    ],
)
def test_after_some_shapes_the_others_follow(met, most, monkeypatch):
    model = zoo.Transformer(11, 11, **SIZES, num_decoder_layers=1)
    counted = []

    def count(model, inputs, runs):
        counted.append(inputs)
        return footprint(model, inputs, runs=runs)

    monkeypatch.setattr(shapes, "footprint", count)
    example = batch(18, 17)[0]
    costs = ShapeCosts(lambda: model, example, footprint(model, example).flops)
    found = {lengths: costs.flops(batch(*lengths), (*lengths, lengths[0])) for lengths in met}
    assert 0 < len(counted) <= most < len(met)
    for lengths in met[-2:]:
        assert found[lengths] == footprint(model, batch(*lengths)[0]).flops
