"""With build=, only what depends on the widths is taken over from freshly built models."""

import dataclasses
import types

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.core.axes import Ref
from growthring.graph.follow import Scaled, adopt_attributes, attribute_value, follow_attributes
from growthring.growing.transaction import all_or_nothing
from tests.growth_contract import randn


@dataclasses.dataclass
class Config:
    width: int = 8
    temperature: float = 1.0


def built(width: int) -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, width * 3), nn.Conv1d(width, 2, 1)
            self.temperature, self.steps, self.log = 1.0, 0, []
            self.cfg, self.table = Config(width), {"width": width, "dropped": 0.1}
            self.last = torch.zeros(2)
            self.shaped = lambda h: h.view(h.shape[0], width, 3) * self.gain
            self.gain = 1.0

        def forward(self, x):
            return self.b(self.shaped(self.a(x))) / self.temperature / self.cfg.temperature

    return Model().double()


def test_what_training_changed_stays():
    torch.manual_seed(0)
    x = randn(3, 4)
    plan = gr.plan(
        built(12), x, stages=3, growth=None, round_to=1, build=lambda w: built(*w.values())
    )
    seed = plan.build_seed()
    seed.temperature, seed.steps, seed.cfg.temperature, seed.gain = 0.5, 77, 0.25, 2.0
    seed.table["dropped"] = 0.3
    seed.log.append("kept")
    log, config, last = seed.log, seed.cfg, seed.last
    grower = gr.Grower(seed, plan, noise=0.0)
    while not grower.is_full:
        before = seed(x).detach()
        grower.grow()
        torch.testing.assert_close(seed(x).detach(), before, rtol=1e-12, atol=1e-12)
        width = seed.b.in_channels
        assert (seed.temperature, seed.steps, seed.cfg.temperature, seed.gain) == (
            0.5,
            77,
            0.25,
            2.0,
        )
        assert seed.table == {"width": width, "dropped": 0.3}
        assert seed.log is log == ["kept"] and seed.cfg is config and seed.last is last
        assert seed.cfg.width == width
        (cell,) = [c for c in seed.shaped.__closure__ if isinstance(c.cell_contents, nn.Module)]
        assert cell.cell_contents is seed  # not the one that build made


def test_adopting_is_all_or_nothing():
    model, old, new = built(4), built(4), built(8)
    model.temperature = 0.5
    held = {k: v for k, v in vars(model).items() if not k.startswith("_")}
    kind = type(model)

    def adopt_and_fail():
        adopt_attributes(model, old, new)
        assert model.cfg.width == 8
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        all_or_nothing([model], adopt_and_fail, lambda: None)
    assert type(model) is kind and model.cfg.width == 4 and model.table["width"] == 4
    assert {k: v for k, v in vars(model).items() if not k.startswith("_")} == held


def test_a_scaled_number_is_exact_at_the_full_width():
    rule = Scaled(Ref(0), -0.5, 0.3, 12)
    assert rule.at({0: 12}) == 0.3 and rule.at({0: 3}) == pytest.approx(0.6)
    model = nn.Module()
    model.scale = 0.3
    follow_attributes(model, {("", "scale"): rule}, {0: 12}, {0: 3})
    assert model.scale == rule.at({0: 3})
    follow_attributes(model, {("", "scale"): rule}, {0: 3}, {0: 12})
    assert model.scale == 0.3


def test_a_value_keeps_its_type():
    axes = (Ref(0), Ref(1))
    widths = {0: 2, 1: 5}
    for held in ([1, 1], (1, 1), torch.Size([1, 1])):
        assert attribute_value(held, axes, widths) == type(held)([2, 5])
        assert type(attribute_value(held, axes, widths)) is type(held)
    assert attribute_value(3, (Ref(0),), widths) == 2


def test_an_attribute_that_means_something_else_is_left_alone():
    model = nn.Module()
    model.n, model.cfg = 7, types.SimpleNamespace(n=7)
    rules = {("", "n"): (Ref(0),), ("", "cfg.n"): (Ref(0),), ("", "gone"): (Ref(0),)}
    follow_attributes(model, rules, {0: 8}, {0: 4})
    assert (model.n, model.cfg.n) == (7, 7)
