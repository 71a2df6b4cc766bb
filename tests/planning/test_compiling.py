"""Compiled steps in a plan: what pays is counted as compiled, with the seconds of compiling."""

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import PlanError
from growthring.planning import compiling
from growthring.planning.compiling import Compiling, compiled, measure_compiling
from tests.discovered import discovered_once as discovered_once

X = torch.zeros(2, 4)


def planned(**options) -> gr.Plan:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
    return gr.plan(net, X, **({"stages": 2, "total_steps": 1000, "batch_size": 4} | options))


def measured(monkeypatch, seconds, found, **options) -> gr.Plan:
    """A plan on a machine of these seconds."""
    monkeypatch.setattr(compiling, "seconds_of_stages", lambda *given: list(seconds))
    monkeypatch.setattr(compiling, "measure_compiling", lambda *given: list(found))
    return planned(**options).measure(compile=True)


def test_a_stage_counts_as_compiled_where_its_steps_repay_it(monkeypatch):
    plan = measured(monkeypatch, [0.1, 0.4], [Compiling(30.0, 0.8), Compiling(20.0, 0.5)])
    first, last = plan.stage_steps
    assert plan.compile_seconds == (0.0, 20.0), "stage 0 would save 0.02 s a step"
    assert plan.seconds == pytest.approx((0.1, 0.2))
    spent = first * 0.1 + last * 0.2 + 20
    assert plan.seconds_share == pytest.approx(spent / (1000 * 0.2 + 20))
    text = str(plan)
    assert [line.split()[-2:] for line in text.splitlines() if "of compiling  " in line] == [
        ["–", "20"]
    ]
    assert "of the seconds of fixed-size training, those of compiling included." in text
    assert plan.as_dict()["compile_seconds"] == [0.0, 20.0]


def test_where_nothing_pays_nothing_changes(monkeypatch):
    plan = measured(monkeypatch, [0.1, 0.4], [Compiling(30.0, 1.1), Compiling(500.0, 0.5)])
    plain = planned().at_same_widths(seconds=(0.1, 0.4))
    assert plan.compile_seconds == (0.0, 0.0) and plan.seconds == (0.1, 0.4)
    assert plan.seconds_share == pytest.approx(plain.seconds_share)
    assert "those of compiling" not in str(plan)


def test_steps_are_measured_and_the_models_left_alone():
    plan = planned()
    stages = [(plan.empty_model(t), X, 4) for t in range(2)]
    before = [{n: t.clone() for n, t in m.state_dict().items()} for m, *_ in stages]
    for found in measure_compiling(stages, 2, "adam", backend="eager"):
        assert found.seconds > 0 and found.ratio > 0
    for (model, *_), kept in zip(stages, before, strict=True):
        assert all(torch.equal(t, kept[n]) for n, t in model.state_dict().items())


def test_without_a_length_nobody_knows_whether_it_pays():
    with pytest.raises(
        PlanError, match="depends on how many steps a stage has: plan with total_steps"
    ):
        planned(total_steps=None, epochs=3).measure(compile=True)


def test_a_stage_that_cannot_be_compiled_is_told():
    def backend(graph, inputs):
        raise RuntimeError("no compiler")

    with pytest.raises(PlanError, match=r"stage 0 cannot be compiled .*measure without compile"):
        measure_compiling([(planned().empty_model(0), X, 4)], 2, backend=backend)


def test_thin_networks_are_kept_from_channels_last(monkeypatch):
    seen = {}
    monkeypatch.setattr(torch, "compile", lambda model, **options: seen.update(options) or model)
    compiled(nn.Linear(2, 2))
    assert seen["options"] == {"layout_optimization": False}
    compiled(nn.Linear(2, 2), "eager")
    assert seen["options"] is None
