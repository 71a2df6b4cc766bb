"""The best of many scores, in an order that does not depend on chance."""

import pytest
import torch

from growthring.decoding.ranking import best


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_the_order_is_that_of_a_stable_sort(count, levels, generator):
    scores = torch.randint(levels, (50, 60), generator=generator).float()
    values, places = scores.sort(dim=1, descending=True, stable=True)
    found = best(scores, count)
    assert torch.equal(found[0], values[:, :count])
    assert torch.equal(found[1], places[:, :count])


def test_impossible_ones_come_last():
    scores = torch.tensor([[-torch.inf, 1.0, -torch.inf, 2.0]])
    values, places = best(scores, 3)
    assert values.tolist() == [[2.0, 1.0, -torch.inf]]
    assert places[0, :2].tolist() == [3, 1]
