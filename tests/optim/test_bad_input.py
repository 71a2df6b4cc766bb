"""Bad input: it works, or there is a clear error and nothing is changed."""

import pytest
import torch
from torch import nn

import growthring as gr
from tests.optim.nets import (
    assert_same,
    backward,
    grower_of,
    is_finite,
    plan_of,
    snapshot,
    train,
)

OPTIMIZERS = {
    "SGD": lambda p, **o: gr.optim.SGD(p, lr=0.01, momentum=0.9, **o),
    "Adam": lambda p, **o: gr.optim.Adam(p, lr=0.01, **o),
    "AdamW": lambda p, **o: gr.optim.AdamW(p, lr=0.01, **o),
    "AvaGrad": lambda p, **o: gr.optim.AvaGrad(p, lr=0.01, **o),
    "LARS": lambda p, **o: gr.optim.LARS(p, lr=0.01, **{"rate_adaptation": "norm", **o}),
    "with_rings": lambda p, **o: gr.optim.with_rings(torch.optim.RMSprop(p, lr=0.01), **o),
}
every = pytest.mark.parametrize("kind", OPTIMIZERS)


def started(kind, net="mlp", growths=1, params=lambda m: m.parameters(), **options):
    plan = plan_of(net)
    model = plan.build_seed()
    optimizer = OPTIMIZERS[kind](params(model), **options)
    grower = grower_of(model, plan, optimizer)
    for _ in range(growths):
        train(model, plan, optimizer, 2)
        grower.grow()
    return plan, model, optimizer, grower


BAD_OPTIONS = [
    ({"rate_adaptation": "norms"}, "rate_adaptation='norms'"),
    ({"rate_adaptation": 1.0}, "rate_adaptation=1.0"),
    ({"rate_adaptation": ["norm"]}, "rate_adaptation="),
    ({"output_rate": "yes"}, "output_rate='yes'"),
    ({"ring_schedule": "mine"}, "ring_schedule='mine'"),
    ({"ring_schedule": "own"}, "needs total_steps="),
    ({"total_steps": 0}, "total_steps=0"),
    ({"total_steps": 2.5}, "total_steps=2.5"),
    ({"total_steps": True}, "total_steps=True"),
    ({"max_schedule_factor": 0}, "max_schedule_factor=0"),
    ({"max_schedule_factor": float("nan")}, "max_schedule_factor=nan"),
    ({"max_schedule_factor": "10"}, "max_schedule_factor='10'"),
    ({"state_at_growth": "drop"}, "state_at_growth='drop'"),
]


@pytest.mark.parametrize("kind", ["SGD", "AvaGrad", "with_rings"])
@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS)
def test_options_that_cannot_work(kind, options, words):
    with pytest.raises(gr.GrowthError, match=words):
        OPTIMIZERS[kind]([nn.Parameter(torch.ones(2))], **options)


@pytest.mark.parametrize("kind", ["SGD", "AvaGrad", "with_rings"])
@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS[::4])
def test_options_of_a_group_that_cannot_work(kind, options, words):
    with pytest.raises(gr.GrowthError, match=words):
        OPTIMIZERS[kind]([{"params": [nn.Parameter(torch.ones(2))], **options}])


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AvaGrad", "with_rings"])
def test_a_bad_group_is_not_added(kind):
    optimizer = OPTIMIZERS[kind]([nn.Parameter(torch.ones(2))])
    with pytest.raises(gr.GrowthError, match="rate_adaptation='x'"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))], "rate_adaptation": "x"})
    assert len(optimizer.param_groups) == 1


def test_an_unknown_option_is_an_error():
    with pytest.raises((TypeError, gr.GrowthError), match="rate_adaption"):
        gr.optim.SGD([nn.Parameter(torch.ones(2))], rate_adaption="norm")
    with pytest.raises((TypeError, gr.GrowthError), match="rate_adaption"):
        gr.optim.with_rings(torch.optim.SGD([nn.Parameter(torch.ones(2))]), rate_adaption="norm")


@pytest.mark.parametrize("make", [gr.optim.AvaGrad, gr.optim.LARS])
@pytest.mark.parametrize("options", [{"lr": -1.0}, {"weight_decay": -0.1}, {"lr": float("nan")}])
def test_settings_below_zero(make, options):
    with pytest.raises(gr.GrowthError, match="none is below 0"):
        make([nn.Parameter(torch.ones(2))], **options)


@every
def test_an_optimizer_of_another_model(kind):
    plan = plan_of("mlp")
    model, other = plan.build_seed(), plan.build_seed()
    optimizer = OPTIMIZERS[kind](other.parameters())
    with pytest.raises(gr.GrowthError, match="none of the 6 parameters"):
        grower_of(model, plan, optimizer)
    assert optimizer.rate_factors() == {}
    grower_of(other, plan, optimizer)
    both = OPTIMIZERS[kind]([*model.parameters(), *other.parameters()])
    grower_of(model, plan, both)
    assert len(both.rate_factors()) == 6


def test_a_plan_of_another_model():
    optimizer = gr.optim.SGD(plan_of("mlp").build_seed().parameters())
    with pytest.raises(gr.GrowthError):
        grower_of(plan_of("mlp").build_seed(), plan_of("joined"), optimizer)
    assert optimizer.rate_factors() == {}


@every
def test_one_optimizer_for_two_growers(kind):
    plan, model, optimizer, grower = started(kind)
    before = snapshot(model, optimizer, grower), optimizer.rate_factors()
    other = plan.build_seed()
    with pytest.raises(gr.GrowthError, match=r"another model|belong to the model"):
        grower_of(other, plan, optimizer)
    optimizer.add_param_group({"params": list(other.parameters())})
    with pytest.raises(gr.GrowthError, match="belongs to a Grower of another model"):
        grower_of(other, plan, optimizer)
    assert_same(before[1], optimizer.rate_factors())
    assert_same(before[0][0], snapshot(model, optimizer, grower)[0])


@every
def test_two_growers_of_one_model(kind):
    """The one that was not asked to grow notices."""
    plan, model, optimizer, grower = started(kind)
    second = grower_of(model, plan, optimizer)
    grower.grow()
    before = snapshot(model, optimizer, second), optimizer.rate_factors()
    with pytest.raises(gr.GrowthError, match="changed outside the grower"):
        second.grow()
    assert_same(before, (snapshot(model, optimizer, second), optimizer.rate_factors()))


@pytest.mark.parametrize("steps", [0, 2])
def test_the_same_optimizer_twice(steps):
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, plan, optimizer, steps)
    with pytest.raises(gr.GrowthError, match="the same Adam is given twice"):
        grower_of(model, plan, [optimizer, optimizer], unknown_state="reset")
    assert len(optimizer.state) == (6 if steps else 0)


def test_a_parameter_in_two_groups():
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = gr.optim.SGD(model.parameters())
    optimizer.param_groups.append({**optimizer.param_groups[0]})  # torch itself refuses this
    with pytest.raises(gr.GrowthError, match="twice in SGD"):
        grower_of(model, plan, optimizer)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (gr.optim.SGD, "differentiable"),
        (gr.optim.AdamW, "capturable"),
        (gr.optim.Adam, "differentiable"),
    ],
)
def test_one_rate_for_a_whole_parameter(make, option):
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = make(model.parameters(), lr=0.01, **{option: True})
    with pytest.raises(gr.GrowthError, match=rf"{option}=True.*Leave {option} out"):
        grower_of(model, plan, optimizer)
    assert optimizer.rate_factors() == {}


def test_a_fused_group_that_comes_later():
    _, model, optimizer, grower = started("Adam")
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "fused": True})
    before = snapshot(model, optimizer, grower), optimizer.rate_factors()
    with pytest.raises(gr.GrowthError, match="fused=True"):
        grower.grow()
    assert_same(before, (snapshot(model, optimizer, grower), optimizer.rate_factors()))


@every
@pytest.mark.parametrize("rule", ["norm", "max", lambda n: n / n[0]])
@pytest.mark.each(2)
def test_a_ring_0_of_zeros_trains_at_the_base_rate(kind, rule):
    plan, model, optimizer, grower = started(kind, rate_adaptation=rule, output_rate=False)
    seed = grower.rings.mask("2.weight", 0)
    with torch.no_grad():
        model.get_parameter("2.weight")[seed] = 0.0
        model.get_parameter("0.weight")[~grower.rings.mask("0.weight", 0)] = 0.0
    factors = optimizer.rate_factors()
    assert factors["0.weight"].tolist() == [1.0, 1.0]
    assert bool(torch.isfinite(factors["2.weight"]).all())
    if rule != "max":
        assert factors["2.weight"].tolist() == [1.0, 1.0]
    train(model, plan, optimizer, 3)
    assert is_finite(model)


@every
def test_weights_that_are_not_finite(kind):
    plan, model, optimizer, grower = started(kind, output_rate=False)
    with torch.no_grad():
        model.get_parameter("2.weight")[0, 0] = float("nan")
        model.get_parameter("4.weight")[0, -1] = float("inf")
    factors = optimizer.rate_factors()
    assert all(bool(torch.isfinite(f).all()) for f in factors.values())
    before = snapshot(model, optimizer, grower)
    with pytest.raises(gr.GrowthError, match=r"2\.weight"):
        grower.grow()
    assert_same(before, snapshot(model, optimizer, grower))
    backward(model, plan, 0)
    optimizer.step()  # as torch: NaN in, NaN out, but no error
