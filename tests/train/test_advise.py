"""advise: pilots, what they conclude, what they refuse, and that they leave everything alone."""

import json
import math

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import InputError, PlanError
from growthring.train.advice import Pilot, conclude
from tests.cli.commands import one_object, run

X = torch.ones(1, 4)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    )


def data(count=30):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 16, 4, generator=generator)
    return [(x, x.prod(1, keepdim=True)) for x in inputs]


def advised(model=None, **options):
    options = {"total_steps": 1500, "share": 0.2, "batches": data(), **options}
    return gr.advise(
        model or net(),
        X,
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
        **options,
    )


def test_pilots_of_two_lengths_within_their_share():
    advice = advised(seeds=2)
    lengths = [(pilot.steps, pilot.seed) for pilot in advice.pilots]
    assert [seed for _, seed in lengths] == [0, 1, 0, 1] and lengths[2][0] == 2 * lengths[0][0]
    assert 0.15 < advice.cost <= 0.21
    assert all(
        math.isfinite(p.full + p.rival + p.grown) and p.seconds_share > 0 for p in advice.pilots
    )
    assert advice.plan.total_steps == 1500
    json.dumps(advice.as_dict(), allow_nan=False)
    assert str(advice).count(" steps ") >= 4 and ("Grow:" in str(advice)) == advice.grow


def test_the_same_each_time_and_nothing_is_touched():
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    first, second = (advised(model, seeds=1, total_steps=750) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for a, b in zip(first.pilots, second.pilots, strict=True):
        assert (a.full, a.rival, a.grown) == (b.full, b.rival, b.grown)


def test_held_out_batches_are_what_a_pilot_is_judged_by():
    constant = [(torch.zeros(8, 4), torch.full((8, 1), 100.0))]
    advice = advised(held_out=constant, seeds=1, total_steps=750)
    assert all(pilot.full > 1000 for pilot in advice.pilots)


# What pilots conclude.


def plan():
    return gr.plan(net(), X, total_steps=1000, start=0.5)


def pilots(*closed, seconds=0.8):
    """As long as the run: nothing falls from there."""
    return [Pilot(1000, i, 1.0, 2.0, 2.0 - c, seconds) for i, c in enumerate(closed)]


def test_equal_steps_save_all_that_growing_costs_less():
    ours, share = plan(), plan().flops_share
    advice = conclude(ours, pilots(1.0, 1.0), 0.05)
    assert advice.flops_saving.mean == pytest.approx(1 - share) and advice.transfer == "steps"
    assert advice.seconds_saving.mean == pytest.approx(0.2) and advice.grow
    assert "Grow: at equal loss" in str(advice) and "Plan: Sequential" in str(advice)


def test_half_the_gap_saves_less_and_no_gap_nothing():
    ours, share = plan(), plan().flops_share
    half = conclude(ours, pilots(0.5, 0.5), 0.05)
    assert half.flops_saving.mean == pytest.approx(1 - share**0.5)
    assert half.seconds_saving.mean == pytest.approx(1 - 0.8 / share**0.5)
    none = conclude(ours, pilots(0.0, 0.0), 0.05)
    assert none.flops_saving.mean == pytest.approx(0.0) and not none.grow
    assert none.transfer == "nothing" and "Train at full size" in str(none)
    assert "Plan: Sequential" not in str(none)


def test_what_is_within_the_error_is_not_recommended():
    assert not conclude(plan(), pilots(0.8, -0.6), 0.05).grow
    assert conclude(plan(), pilots(0.8, 0.6), 0.05).grow
    assert not conclude(plan(), pilots(0.8), 0.05).grow  # one pilot has no error that is known


def test_where_training_longer_makes_nothing_better():
    flat = [Pilot(1000, i, 1.0, 1.0, 0.9, 0.8) for i in range(4)]
    advice = conclude(plan(), flat, 0.05)
    assert advice.closed is None and not advice.grow and "nothing better" in str(advice)
    assert json.loads(json.dumps(advice.as_dict()))["closed"] is None


def test_pilots_shorter_than_the_warm_up_of_a_run_do_not_hide_the_gap_of_longer_ones():
    short = [Pilot(50, i, 2.1, 2.0, 2.0, 0.8) for i in range(2)]
    closed = conclude(plan(), [*short, *pilots(0.6, 0.4)], 0.05).closed
    assert closed is not None and closed.mean == pytest.approx(0.5)
    late = [Pilot(2000, i, 1.0, 1.0, 0.9, 0.8) for i in range(2)]
    assert conclude(plan(), [*pilots(0.6, 0.4), *late], 0.05).closed is None


def test_slow_narrow_stages_are_named():
    advice = conclude(plan(), pilots(0.3, 0.35, seconds=1.0), 0.05)
    assert advice.grow and "narrow stages are not that much faster" in str(advice)


def test_a_gap_that_is_noise_in_one_pilot_does_not_decide():
    # γ of each alone: −100 and 0.5; of both together about a half
    noisy = [Pilot(1000, 0, 1.999, 2.0, 2.1, 0.8), Pilot(1000, 1, 1.0, 2.0, 1.4, 0.8)]
    advice = conclude(plan(), noisy, 0.05)
    assert advice.closed is not None and advice.closed.mean == pytest.approx(0.5 / 1.001)


def test_a_lead_of_the_first_steps_is_not_foretold_for_the_run():
    advice = conclude(plan(), pilots(1.5, 1.7), 0.05)
    assert advice.closed is not None and advice.closed.mean == 1.0
    assert advice.flops_saving.mean == pytest.approx(1 - plan().flops_share)


def test_lengths_that_disagree_are_an_error_of_the_estimate():
    short = [Pilot(500, i, 1.0, 2.0, 1.1, 0.8) for i in range(2)]
    closed = conclude(plan(), [*short, *pilots(0.1, 0.1)], 0.05).closed
    assert closed is not None and (closed.mean, closed.error) == pytest.approx((0.1, 0.4))


def test_what_a_growth_closes_falls_with_the_length_of_the_run():
    early = [Pilot(125, i, 1.0, 2.0, 1.2, 0.8) for i in range(2)]
    closed = conclude(plan(), early, 0.05).closed
    assert closed is not None and closed.error > 0.15
    assert closed.mean < 0.7  # three doublings below 0.8


def test_pilots_that_cannot_tell_say_so():
    advice = conclude(plan(), pilots(1.2, -1.4), 0.05)
    assert advice.is_open and not advice.grow and "cannot tell" in str(advice)
    assert advice.as_dict()["open"] is True
    alone = conclude(plan(), pilots(0.8), 0.05)
    assert alone.is_open and "± unknown" in str(alone)
    assert json.loads(json.dumps(alone.as_dict(), allow_nan=False))["closed"]["error"] is None


def test_gradients_are_clipped_as_in_the_run():
    free, clipped = (advised(seeds=1, total_steps=750, clip_norm=norm) for norm in (None, 1e-6))
    assert all(a.full != b.full for a, b in zip(free.pilots, clipped.pilots, strict=True))


# What is refused before anything is trained.


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"total_steps": 300, "share": 0.05},
            InputError,
            r"a run of 300 steps leaves 1 steps .* or more",
        ),
        ({"share": 0}, InputError, "share=0: pilots cost a share"),
        ({"share": 1.5}, InputError, "share=1.5: pilots"),
        ({"seeds": 0}, InputError, "seeds=0 is not a whole number"),
        ({"stages": 1}, PlanError, "one stage: there is no growth to advise on"),
        ({"batches": []}, InputError, "no batches to judge"),
        ({"batches": iter(data())}, InputError, "gone over once only"),
        ({"lr_kind": "steps"}, InputError, "lr_schedule='steps' is not one of"),
        ({"warmup": 2}, InputError, "warmup=2: the rate rises over a share"),
        ({"budget": 0.01}, PlanError, "budget=0.01: no schedule"),
    ],
)
def test_refusals(options, error, message):
    with pytest.raises(error, match=message):
        advised(**options)


def test_the_command_refuses_a_run_that_is_too_short(capsys):
    status, _, err = run(capsys, "advise", "--recipe", "demo", "--share", "1%")
    assert status == 2 and "too few to tell anything" in err


@pytest.mark.slow
def test_the_command(capsys):
    options = ["--set", "num_train=128", "--set", "model_options.width=4", "--set", "epochs=80"]
    asked = ["advise", "--recipe", "demo", "--share", "100%", "--seeds", "1", *options]
    status, out, err = run(capsys, *asked)
    assert status == 0 and "pilot of" in err and "gap closed" in out and "Training" not in err
    found = one_object(run(capsys, *asked, "--json")[1])
    assert set(found) >= {"grow", "flops_saving", "pilots", "plan"}
