"""Update rules: every optimizer agrees with a reference that builds each ring as a mask."""

import itertools

import pytest
import torch

import growthring as gr
from growthring.zoo import resnet20
from tests.optim import reference
from tests.optim.nets import NETS, STAGES, backward, grower_of, is_finite, plan_of
from tests.optim.reference import Reference


def half(norms):
    """A rule of the user: halfway between the paper's and none."""
    return (1 + norms / norms[0]) / 2


SGD = {"output_rate": True, "state": "reset"}  # its defaults, as the reference calls them
OWN = {"ring_schedule": "own", "total_steps": 13}

# name: optimizer, formula, lr, options, and what the reference calls otherwise
CASES = {
    "sgd": (gr.optim.SGD, reference.sgd, 0.05, {}, SGD),
    "sgd momentum": (gr.optim.SGD, reference.sgd, 0.02, {"momentum": 0.9, "weight_decay": 0.01}, SGD),
    "sgd dampening": (gr.optim.SGD, reference.sgd, 0.05, {
        "momentum": 0.8, "dampening": 0.3, "state_at_growth": "keep", "output_rate": False}, {}),
    "sgd nesterov": (gr.optim.SGD, reference.sgd, 0.02, {
        "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "rate_adaptation": "max",
        "state_at_growth": "rescale"}, {"output_rate": True, "state": "rescale"}),
    "sgd maximize": (gr.optim.SGD, reference.sgd, 0.002, {
        "momentum": 0.5, "maximize": True, "weight_decay": 0.1, "rate_adaptation": half,
        "foreach": True}, SGD),
    "sgd none": (gr.optim.SGD, reference.sgd, 0.05, {
        "momentum": 0.9, "rate_adaptation": None, "state_at_growth": "keep"}, {}),
    "sgd own": (gr.optim.SGD, reference.sgd, 0.05, {
        "momentum": 0.9, "max_schedule_factor": 3.0, **OWN}, SGD),
    "adam": (gr.optim.Adam, reference.adam, 0.003, {}, {}),
    "adam decay": (gr.optim.Adam, reference.adam, 0.003, {
        "weight_decay": 0.05, "betas": (0.8, 0.95), "state_at_growth": "rescale"},
        {"state": "rescale"}),
    "adam amsgrad": (gr.optim.Adam, reference.adam, 0.003, {
        "amsgrad": True, "rate_adaptation": None, "maximize": True, "eps": 1e-3}, {}),
    "adam reset": (gr.optim.Adam, reference.adam, 0.003, {
        "state_at_growth": "reset", "rate_adaptation": "max"}, {"state": "reset"}),
    "adamw": (gr.optim.AdamW, reference.adam, 0.003, {
        "weight_decay": 0.1, "amsgrad": True, "output_rate": True}, {"decoupled": True}),
    "adamw own": (gr.optim.AdamW, reference.adam, 0.003, {
        "weight_decay": 0.1, "rate_adaptation": half, **OWN}, {"decoupled": True}),
    "avagrad": (gr.optim.AvaGrad, reference.avagrad, 0.05, {"weight_decay": 0.01}, {}),
    "avagrad own": (gr.optim.AvaGrad, reference.avagrad, 0.05, {
        "betas": (0.7, 0.9), "eps": 1e-3, "maximize": True, "rate_adaptation": None,
        "output_rate": True, "state_at_growth": "rescale", **OWN}, {"state": "rescale"}),
    "lars": (gr.optim.LARS, reference.lars, 2.0, {"momentum": 0.9, "weight_decay": 0.01},
        {"rate_adaptation": None, "state": "reset"}),
    "lars rings": (gr.optim.LARS, reference.lars, 2.0, {
        "momentum": 0.9, "nesterov": True, "rate_adaptation": "norm", "trust_coefficient": 0.01,
        "state_at_growth": "keep"}, {}),
}  # fmt: skip


def error_after_five_growths(case, net, dtype, mode="preserving"):
    make, formula, lr, options, own = CASES[case]
    plan = plan_of(net, dtype)
    model = plan.build_seed()
    optimizer = make(model.parameters(), lr=lr, **options)
    grower = grower_of(model, plan, optimizer, variance_transfer=mode)
    output = NETS[net][2]
    outputs = {output: model.get_parameter(output).shape[1]}
    ref = Reference(formula, model, grower, outputs, **{**options, **own})
    for stage in range(STAGES):
        for i in range(2):
            optimizer.param_groups[0]["lr"] = rate = lr * (1 - (2 * stage + i) / 12)
            optimizer.zero_grad()
            backward(model, plan, 10 * stage + i)
            ref.step(model, rate)
            optimizer.step()
        if not grower.is_full:
            ref.grow(model, grower.grow(measure=False), stage)
    assert grower.rings.num_rings == STAGES and is_finite(model)
    return ref.error(model)


@pytest.mark.each(16)
@pytest.mark.parametrize(("case", "net"), [*itertools.product(CASES, NETS)])
def test_agrees_with_the_reference_in_double_precision(case, net):
    assert error_after_five_growths(case, net, torch.float64) <= 1e-12


@pytest.mark.parametrize("case", CASES)
@pytest.mark.each(3)
def test_agrees_with_the_reference_in_single_precision(case):
    assert error_after_five_growths(case, "attention", torch.float32) <= 1e-6


@pytest.mark.parametrize("case", ["sgd nesterov", "adam decay", "avagrad"])
@pytest.mark.parametrize("mode", ["off", "paper"])
@pytest.mark.each(2)
def test_agrees_in_every_mode_of_variance_transfer(case, mode):
    assert error_after_five_growths(case, "residual", torch.float64, mode) <= 1e-12


def test_the_reference_tells_rules_apart():
    """The agreement above would be worth nothing if it held for any rule."""
    for case, wrong in (("sgd", {"rate_adaptation": "max"}), ("adam", {"state": "reset"})):
        make, formula, lr, options, own = CASES[case]
        CASES["wrong"] = (make, formula, lr, options, {**own, **wrong})
        assert error_after_five_growths("wrong", "mlp", torch.float64) > 1e-6
    del CASES["wrong"]


def test_parameters_that_get_gradients_late_have_ages_of_their_own():
    """A head that is frozen until stage 1: its rings were all born when its state was."""
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = gr.optim.Adam(model.parameters(), lr=0.01, rate_adaptation=None)
    grower = grower_of(model, plan, optimizer)
    ref = Reference(reference.adam, model, grower, {}, rate_adaptation=None)
    frozen = model.get_parameter("2.weight")
    for stage in range(4):
        for i in range(3):
            optimizer.zero_grad()
            backward(model, plan, 10 * stage + i)
            if stage < 2:
                frozen.grad = None
            ref.step(model, 0.01)
            optimizer.step()
        ref.grow(model, grower.grow(), stage)
    assert ref.error(model) <= 1e-12


@pytest.mark.slow
def test_the_newest_ring_of_resnet20_starts_near_1_8():
    """Known-good: between 1.5 and 2.2 times the base rate after the last of nine stages."""
    torch.manual_seed(0)
    plan = gr.plan(resnet20(), torch.randn(2, 3, 16, 16), preset="paper")
    model = plan.build_seed()
    optimizer = gr.optim.SGD(model.parameters(), lr=0.1)
    grower = grower_of(model, plan, optimizer)
    while not grower.is_full:
        grower.grow(measure=False)
    names = [n for n, p in model.named_parameters() if p.dim() == 4 and "shortcut" not in n]
    factors = optimizer.rate_factors()[names[-1]]
    assert len(factors) == 9 and factors[0] == 1.0
    assert 1.5 <= float(factors[-1]) <= 2.2
