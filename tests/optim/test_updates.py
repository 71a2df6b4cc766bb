"""Update rules: every optimizer agrees with a reference that builds each ring as a mask."""

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.optim.geometry import ParameterRings, RingBatch, RingGeometry
from tests.optim import reference
from tests.optim.nets import NETS, STAGES, backward, grower_of, is_finite, plan_of
from tests.optim.reference import Reference

O = gr.optim


def half(norms):
    """A rule of the user: halfway between the paper's and none."""
    return (1 + norms / norms[0]) / 2


# name: (optimizer, formula, lr, options of the optimizer, options that the reference calls otherwise)
CASES = {
    "sgd": (O.SGD, reference.sgd, 0.05, {}, {"output_rate": True, "state": "reset"}),
    "sgd momentum": (
        O.SGD,
        reference.sgd,
        0.02,
        {"momentum": 0.9, "weight_decay": 0.01},
        {"output_rate": True, "state": "reset"},
    ),
    "sgd dampening": (
        O.SGD,
        reference.sgd,
        0.05,
        {"momentum": 0.8, "dampening": 0.3, "state_at_growth": "keep", "output_rate": False},
        {"output_rate": False},
    ),
    "sgd nesterov": (
        O.SGD,
        reference.sgd,
        0.02,
        {
            "momentum": 0.9,
            "nesterov": True,
            "weight_decay": 0.01,
            "state_at_growth": "rescale",
            "rate_adaptation": "max",
        },
        {"output_rate": True, "state": "rescale"},
    ),
    "sgd maximize": (
        O.SGD,
        reference.sgd,
        0.002,
        {
            "momentum": 0.5,
            "maximize": True,
            "weight_decay": 0.1,
            "rate_adaptation": half,
            "foreach": True,
        },
        {"output_rate": True, "state": "reset"},
    ),
    "sgd none": (
        O.SGD,
        reference.sgd,
        0.05,
        {"momentum": 0.9, "rate_adaptation": None, "state_at_growth": "keep"},
        {},
    ),
    "sgd own": (
        O.SGD,
        reference.sgd,
        0.05,
        {"momentum": 0.9, "ring_schedule": "own", "total_steps": 20, "max_schedule_factor": 3.0},
        {"output_rate": True, "state": "reset"},
    ),
    "adam": (O.Adam, reference.adam, 0.003, {}, {}),
    "adam decay": (
        O.Adam,
        reference.adam,
        0.003,
        {"weight_decay": 0.05, "betas": (0.8, 0.95), "state_at_growth": "rescale"},
        {"state": "rescale"},
    ),
    "adam amsgrad": (
        O.Adam,
        reference.adam,
        0.003,
        {"amsgrad": True, "rate_adaptation": None, "maximize": True, "eps": 1e-3},
        {},
    ),
    "adam reset": (
        O.Adam,
        reference.adam,
        0.003,
        {"state_at_growth": "reset", "rate_adaptation": "max"},
        {"state": "reset"},
    ),
    "adamw": (
        O.AdamW,
        reference.adam,
        0.003,
        {"weight_decay": 0.1, "amsgrad": True, "output_rate": True},
        {"decoupled": True},
    ),
    "adamw own": (
        O.AdamW,
        reference.adam,
        0.003,
        {"weight_decay": 0.1, "ring_schedule": "own", "total_steps": 16, "rate_adaptation": half},
        {"decoupled": True},
    ),
    "avagrad": (O.AvaGrad, reference.avagrad, 0.05, {"weight_decay": 0.01}, {}),
    "avagrad own": (
        O.AvaGrad,
        reference.avagrad,
        0.05,
        {
            "betas": (0.7, 0.9),
            "eps": 1e-3,
            "maximize": True,
            "rate_adaptation": None,
            "output_rate": True,
            "ring_schedule": "own",
            "total_steps": 30,
            "state_at_growth": "rescale",
        },
        {"state": "rescale"},
    ),
    "lars": (
        O.LARS,
        reference.lars,
        2.0,
        {"momentum": 0.9, "weight_decay": 0.01},
        {"rate_adaptation": None, "state": "reset"},
    ),
    "lars rings": (
        O.LARS,
        reference.lars,
        2.0,
        {
            "momentum": 0.9,
            "nesterov": True,
            "rate_adaptation": "norm",
            "trust_coefficient": 0.01,
            "state_at_growth": "keep",
        },
        {},
    ),
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
        for i in range(3):
            optimizer.param_groups[0]["lr"] = rate = lr * (1 - (3 * stage + i) / 18)
            optimizer.zero_grad()
            backward(model, plan, 10 * stage + i)
            ref.step(model, rate)
            optimizer.step()
        if not grower.is_full:
            ref.grow(model, grower.grow(), stage)
    assert grower.rings.num_rings == STAGES and is_finite(model)
    return ref.error(model)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_reference_in_double_precision(case, net):
    assert error_after_five_growths(case, net, torch.float64) <= 1e-12


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_reference_in_single_precision(case, net):
    assert error_after_five_growths(case, net, torch.float32) <= 1e-6


@pytest.mark.parametrize("case", ["sgd nesterov", "adam decay", "avagrad"])
@pytest.mark.parametrize("mode", ["off", "paper"])
def test_agrees_in_every_mode_of_variance_transfer(case, mode):
    assert error_after_five_growths(case, "residual", torch.float64, mode) <= 1e-12
