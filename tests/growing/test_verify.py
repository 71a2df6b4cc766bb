"""verify and compare: the measurement itself must not be fooled."""

import json
import math

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.growing.verify import compare_outputs, outputs_of
from tests.discovered import discovered_once as discovered_once
from tests.growth_contract import Net, randn


def test_nothing_changed():
    net = nn.Linear(3, 2)
    found = gr.verify(net, net, torch.ones(4, 3))
    assert (found.absolute, found.relative, found.scale, found.same_argmax) == (0.0, 0.0, 1.0, True)
    assert found.num_outputs == 1


def test_absolute_relative_scale():
    a = torch.tensor([[1.0, -4.0, 2.0]])
    found = compare_outputs([a], [a + torch.tensor([[0.0, 0.0, 0.5]])])
    assert found.absolute == pytest.approx(0.5) and found.relative == pytest.approx(0.125)
    found = compare_outputs([a], [0.5 * a])
    assert found.scale == pytest.approx(0.5) and found.relative_after_scale == pytest.approx(0)
    assert found.relative == pytest.approx(0.5) and found.same_argmax
    assert "factor 0.5" in str(found)


def test_argmax():
    found = compare_outputs([torch.tensor([[1.0, 2.0]])], [torch.tensor([[2.0, 1.0]])])
    assert not found.same_argmax and "argmax differs" in str(found)


def test_the_worst_of_several_outputs_counts():
    a, b = torch.ones(2), 100 * torch.ones(2)
    found = compare_outputs([a, b], [a + 0.5, b])
    assert found.relative == pytest.approx(0.5) and found.num_outputs == 2


def test_a_value_that_is_not_finite_is_never_equal():
    for bad in (math.nan, math.inf):
        found = compare_outputs([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, bad])])
        assert found.relative == math.inf


def test_a_change_beside_infinities_is_seen():
    before, after = torch.tensor([-math.inf, 1.0]), torch.tensor([-math.inf, 2.0])
    found = compare_outputs([before], [after])
    assert found.relative >= 0.5
    assert compare_outputs([before], [before.clone()]).relative == 0.0


def test_outputs_that_were_not_finite_before_do_not_hide_a_change():
    found = compare_outputs([torch.tensor([math.nan, 1.0])], [torch.tensor([math.nan, 2.0])])
    assert not found.relative <= 1e-3


def test_whole_numbers_and_complex_and_empty_outputs():
    assert compare_outputs([torch.arange(3)], [torch.arange(3)]).relative == 0
    assert compare_outputs([torch.tensor([True])], [torch.tensor([False])]).relative > 0
    assert compare_outputs([torch.empty(0)], [torch.empty(0)]).relative == 0
    z = torch.complex(torch.ones(2), torch.ones(2))
    assert compare_outputs([z], [2 * z]).relative > 0, "a complex output must not be passed over"


def test_shapes_must_agree():
    with pytest.raises(gr.GrowthError, match="different shapes"):
        compare_outputs([torch.ones(2)], [torch.ones(3)])


def test_other_things_than_modules():
    with pytest.raises(gr.GrowthError, match="`after` is a str"):
        gr.verify(nn.Linear(2, 2), "model", torch.ones(1, 2))  # type: ignore[arg-type]


def test_modes_and_grads_are_as_before():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    net.train()
    net[1].eval()
    before = {n: t.clone() for n, t in net.state_dict().items()}
    state = torch.get_rng_state()
    outputs = outputs_of(net, randn(4, 3).float())
    assert not outputs.returned[0].requires_grad
    assert [m.training for m in net.modules()] == [True, True, False, True]
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_modes_are_restored_after_an_error():
    net = Net(lambda self, x: self.missing(x), a=nn.Linear(2, 2))
    net.train()
    with pytest.raises(AttributeError):
        outputs_of(net, torch.ones(1, 2))
    assert net.training and net.a.training


def test_inputs_by_name_and_chosen_outputs():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2)

        def forward(self, x, scale=1.0):
            return {"logits": self.a(x) * scale, "extra": x}

    net = Named()
    found = gr.verify(net, net, {"x": torch.ones(1, 2)}, outputs=["logits"])
    assert found.num_outputs == 1
    with pytest.raises(gr.GrowthError, match="without 'loss'; it has logits, extra"):
        gr.verify(net, net, torch.ones(1, 2), outputs=["loss"])


def test_as_dict_is_json():
    net = nn.Linear(3, 2)
    assert (
        json.loads(json.dumps(gr.verify(net, net, torch.ones(1, 3)).as_dict()))["relative"] == 0.0
    )
