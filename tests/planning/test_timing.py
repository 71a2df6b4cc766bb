"""Seconds of training steps: what a step is, turns against a busy machine, budgets and notes by measured seconds.

No clock of a machine decides here: a clock that only its steps move stands in for it.
"""

import sys
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import GrowthError, PlanError
from growthring.graph.isolation import untouched
from growthring.optim import OPTIMIZERS
from growthring.planning import timing
from growthring.planning.costs import OPTIMIZER_STATE
from growthring.planning.notes import seconds_notes
from growthring.planning.timing import TrainingStep, in_turns, seconds_per_step
from tests.growth_contract import Net

X = torch.zeros(2, 4)


def mlp(width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


class Clock:
    """Seconds that pass only where a step takes them."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, []

    def __call__(self) -> float:
        return self.now

    def step(self, name, seconds):
        """A step of so many seconds, or of `seconds(calls so far)`."""

        def take() -> None:
            self.calls.append(name)
            self.now += seconds(len(self.calls)) if callable(seconds) else seconds

        return take


# Turns.


def test_seconds_of_a_quiet_machine():
    clock = Clock()
    steps = [clock.step("a", 0.2), clock.step("b", 0.5)]
    assert in_turns(steps, 3, clock) == pytest.approx([0.2, 0.5])
    assert clock.calls == [*"ab", *"ba", *"ab", *"ba"]


def test_a_machine_that_is_busy_for_a_while_slows_both():
    """Three times slower in the second half of the run: the ratio is as it was."""
    clock = Clock()

    def slowing(seconds):
        return lambda call: seconds * (3 if call > 8 else 1)

    narrow, full = in_turns(
        [clock.step("a", slowing(0.2)), clock.step("b", slowing(0.5))], 7, clock
    )
    assert narrow / full == pytest.approx(0.4)


def test_one_interruption_does_not_count():
    clock = Clock()
    steps = [clock.step("a", lambda call: 0.2 + 60 * (call == 4)), clock.step("b", 0.5)]
    assert in_turns(steps, 3, clock) == pytest.approx([0.2, 0.5])


def test_short_steps_are_timed_many_at_once():
    clock = Clock()
    steps = [clock.step("a", 0.001), clock.step("b", 0.0125)]
    assert in_turns(steps, 2, clock) == pytest.approx([0.001, 0.0125])
    assert clock.calls.count("a") == 1 + 2 * 50 and clock.calls.count("b") == 1 + 2 * 4


# A step.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_step_is_timed(dtype):
    assert seconds_per_step(mlp().to(dtype), X.to(dtype), 8, repeats=1) > 0


@pytest.mark.parametrize("name", OPTIMIZER_STATE)
def test_a_step_is_one_of_the_plans_optimizer_in_train_mode(monkeypatch, name):
    taken, modes = Mock(), Mock()
    if name in OPTIMIZERS:
        kind = type("Counted", (OPTIMIZERS[name],), {"step": lambda self: taken(self)})
        monkeypatch.setitem(OPTIMIZERS, name, kind)
    net = mlp().eval()
    net.register_forward_hook(lambda module, *_: modes(module.training) and None)
    seconds_per_step(net, X, 4, repeats=1, optimizer=name)
    assert taken.called == (name != "none")
    assert {call.args for call in modes.call_args_list} == {(True,)} and not net.training


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_can_take_the_step(name):
    step = TrainingStep(mlp(), X, 4, name)
    step()
    step()


def test_gradients_do_not_add_up():
    net = mlp()
    step = TrainingStep(net, X, 4)
    step()
    assert all(p.grad is None for p in net.parameters())


def test_timing_repeats_the_inputs_up_to_the_batch_size():
    seen = Mock()  # a list would be as it was before
    net = mlp()
    net.register_forward_pre_hook(lambda _, inputs: seen.look(inputs[0].clone()) and None)
    x = torch.arange(12.0).reshape(3, 4)
    seconds_per_step(net, x, 7, repeats=1)
    batches = [call.args[0] for call in seen.look.call_args_list]
    assert len(batches) >= 3
    assert all(torch.equal(b, x[torch.tensor([0, 1, 2, 0, 1, 2, 0])]) for b in batches)


def test_timing_leaves_values_buffers_and_random_numbers():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    before = {n: t.clone() for n, t in net.state_dict().items()}
    state = torch.get_rng_state()
    seconds_per_step(net, torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), 6, 1)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())


def test_running_statistics_are_put_back():
    norm = nn.BatchNorm1d(4)
    with untouched(norm):
        norm(torch.ones(3, 4))
    assert torch.equal(norm.running_mean, torch.zeros(4)) and int(norm.num_batches_tracked) == 0


def test_timing_opens_nested_outputs():
    net = Net(lambda self, x: {"a": [self.l(x), None], "n": 3, "i": x.long()}, l=nn.Linear(4, 3))
    assert seconds_per_step(net, X, 4, repeats=1) > 0


@pytest.mark.parametrize(
    "net",
    [
        mlp().requires_grad_(False),
        Net(lambda self, x: self.l(x).argmax(-1), l=nn.Linear(4, 3)),
    ],
    ids=["frozen", "no gradient"],
)
def test_a_model_without_gradients_is_refused(net):
    with pytest.raises(GrowthError, match=r"(?i)grad"):
        seconds_per_step(net, X, 4, repeats=1)


# Plans by seconds.


@pytest.fixture
def pretended(monkeypatch):
    """Steps that take `overhead` + `per_unit` seconds for each unit and example, whatever the machine."""

    def pretend(overhead, per_unit):
        def seconds(stages, repeats, optimizer):
            return [overhead + per_unit * size * net[0].out_features for net, _, size in stages]

        monkeypatch.setattr(
            sys.modules["growthring.planning.compiling"], "seconds_of_stages", seconds
        )

    return pretend


def doubled(**options) -> gr.Plan:
    settings = {"stages": 2, "schedule": "doubling", "total_steps": 1000, "batch_size": 8}
    return gr.plan(mlp(64), X, **(settings | options))


def test_a_measured_plan_has_seconds_of_every_stage(pretended):
    pretended(0.0, 1.0)
    plan = doubled(batch_size=[16, 8]).measure()
    assert plan.seconds == (16 * 32, 8 * 64) and plan.relative_seconds == [0.5, 1.0]
    assert doubled().relative_seconds == []


def test_a_doubling_by_seconds_grows_when_the_seconds_are_spent(pretended):
    """Half of the width takes three quarters of the seconds: 0.8 of them are spent at 4/5 of the run."""
    pretended(256.0, 1.0)
    plan = doubled(budget=0.8, budget_of="seconds")
    assert plan.seconds == (512.0, 768.0)
    assert plan.shares[0] == pytest.approx(0.6, abs=0.011)
    assert 0.78 < plan.seconds_share <= 0.8
    by_flops = doubled(budget=0.8)
    assert by_flops.shares[0] < plan.shares[0], "by FLOPs, half of the width is cheaper"


def test_a_budget_below_what_narrow_stages_cost_is_refused(pretended):
    pretended(256.0, 1.0)
    found = r"the cheapest takes 70.0%. Measured on this machine, .* takes 67% of the seconds of a full-size one"
    with pytest.raises(PlanError, match=found):
        doubled(budget=0.6, budget_of="seconds")
    assert doubled(budget=0.6).flops_share <= 0.6, "of FLOPs it is possible"


def test_thin_stages_are_noted(pretended):
    pretended(256.0, 1.0)
    plan = doubled().measure()
    gap = plan.seconds_share - plan.flops_share
    assert gap > 0.08
    (note,) = [note for note in plan.as_dict()["notes"] if "too thin" in note]
    assert f"costs {gap:.0%} of fixed-size training more" in note
    assert "stage 0 takes 67% of the seconds" in note and "batch_growth" in note
    assert note in str(plan)
    pretended(0.0, 1e-3)
    assert "seconds per example" in str(doubled(batch_size=[64, 8]).measure())


def test_seconds_near_the_flops_are_not_noted():
    stages = [0.1, 0.3, 1.0], [0.4, 0.5, 1.0]
    assert seconds_notes((0.6, None), *stages) == [] == seconds_notes((0.6, 0.67), *stages)
    (note,) = seconds_notes((0.6, 0.69), *stages)
    assert "stage 0 takes 40% of the seconds of a full-size one for 10% of its FLOPs" in note


def test_a_stage_that_fails_is_named():
    net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    plan = gr.plan(net, X, stages=3, batch_size=[4, 1, 4])
    with pytest.raises(PlanError, match="a training step of stage 1 with a batch of 1 fails"):
        plan.measure(1)


def test_the_processors_time_counts_where_one_thread_works(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert timing.clock_of(mlp()) is timing.time.process_time
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert timing.clock_of(mlp()) is timing.time.perf_counter
