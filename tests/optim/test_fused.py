"""fused=True: torch's fused kernels with rates per ring, against the foreach path."""

import copy

import pytest
import torch
from torch import nn

import growthring as gr
from tests.optim.nets import assert_same, backward, grower_of, is_finite, plan_of, train

ADAM = {"lr": 0.01, "ages": "shared"}
CASES = {
    "SGD": (gr.optim.SGD, {"lr": 0.05}),
    "SGD, all of it": (
        gr.optim.SGD,
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    ),
    "SGD, maximize": (gr.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "maximize": True}),
    "SGD, reset": (gr.optim.SGD, {"lr": 0.05, "momentum": 0.9, "state_at_growth": "reset"}),
    "SGD, no factors": (
        gr.optim.SGD,
        {"lr": 0.05, "momentum": 0.9, "rate_adaptation": None, "output_rate": False},
    ),
    "Adam": (gr.optim.Adam, {**ADAM, "weight_decay": 0.1}),
    "Adam, amsgrad": (gr.optim.Adam, {**ADAM, "amsgrad": True}),
    "AdamW": (gr.optim.AdamW, {**ADAM, "weight_decay": 0.3}),
    "AdamW, own": (gr.optim.AdamW, {**ADAM, "ring_schedule": "own", "total_steps": 12}),
    "AdamW, warm-up": (gr.optim.AdamW, {**ADAM, "new_ring_rate": 1.5, "new_ring_warmup": 3}),
    "AdamW, tensor": (gr.optim.AdamW, {**ADAM, "lr": torch.tensor(0.01)}),
}


def run(case, net, dtype=torch.float64, growths=2, **options):
    make, given = CASES[case]
    plan = plan_of(net, dtype)
    model = plan.build_seed()
    optimizer = make(model.parameters(), **{**given, **options})
    grower = grower_of(model, plan, optimizer)
    for stage in range(growths + 1):
        train(model, plan, optimizer, 3, seed=stage)
        if stage < growths:
            grower.grow()
    return model, optimizer


@pytest.mark.parametrize("net", ["mlp", "residual", "joined"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.each(2)
def test_fused_steps_are_those_of_the_other_path(case, net):
    model, optimizer = run(case, net, fused=True)
    twin, other = run(case, net)
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    torch.testing.assert_close(optimizer.rate_factors(), other.rate_factors(), rtol=1e-6, atol=1e-8)


def test_in_half_precision_no_farther_from_single_than_the_other_path():
    exact = run("AdamW", "mlp", torch.float32)[0].state_dict()
    errors = []
    for options in ({"fused": True}, {}):
        model, _ = run("AdamW", "mlp", torch.bfloat16, **options)
        assert is_finite(model)
        pairs = zip(model.state_dict().values(), exact.values(), strict=True)
        errors.append(sum(float((a.float() - b).norm()) for a, b in pairs))
    assert errors[0] < 2 * errors[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_on_a_cpu_which_torchs_kernel_does_not_step(dtype):
    plan = plan_of("mlp", dtype)
    model = plan.build_seed()
    optimizer = gr.optim.SGD(model.parameters(), lr=0.1, fused=True)
    words = r"SGD\(fused=True\) with weights of .* on a CPU.*Leave fused out"
    with pytest.raises(gr.GrowthError, match=words):
        grower_of(model, plan, optimizer)
    assert optimizer.rate_factors() == {}


@pytest.mark.parametrize("make", [gr.optim.SGD, gr.optim.Adam, gr.optim.AdamW])
def test_without_a_grower_they_are_torchs(make):
    results = []
    for kind in (make, getattr(torch.optim, make.__name__)):
        w = nn.Parameter(torch.linspace(-1, 1, 40).view(8, 5))
        optimizer = kind([w], lr=0.1, fused=True)
        for i in range(3):
            w.grad = torch.sin(i + w.detach())
            optimizer.step()
        results.append((w.detach(), optimizer.state[w]))
    assert_same(dict(results[0][1]), dict(results[1][1]))
    assert torch.equal(results[0][0], results[1][0])


@pytest.mark.parametrize("case", ["SGD, all of it", "AdamW", "Adam, amsgrad"])
def test_memory_layouts_that_differ(case):
    """Torch's kernels take the numbers in the order of memory, whatever the strides say."""
    results = []
    for options in ({"fused": True}, {}):
        make, given = CASES[case]
        plan = plan_of("residual")
        model = plan.build_seed()
        optimizer = make(model.parameters(), **given, **options)
        grower = grower_of(model, plan, optimizer)
        for i in range(4):
            if i == 2:
                model.to(memory_format=torch.channels_last)  # its state is not moved along
                grower.grow()
            model.zero_grad()
            backward(model, plan, i)
            for p in model.parameters():
                p.grad = p.grad.contiguous()
            optimizer.step()
        results.append(dict(model.state_dict()))
    torch.testing.assert_close(*results)


def test_fused_and_unfused_state_are_interchangeable():
    model, optimizer = run("AdamW", "mlp", fused=True)
    twin, other = run("AdamW", "mlp")
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.param_groups[0]["fused"] is True
    twin.load_state_dict(model.state_dict())
    for net, one in ((model, optimizer), (twin, other)):
        train(net, plan_of("mlp"), one, 2, seed=9)
    assert_same(dict(model.state_dict()), dict(twin.state_dict()))


@pytest.mark.parametrize("options", [{}, {"ages": "ring"}])
@pytest.mark.parametrize("make", [gr.optim.Adam, gr.optim.AdamW])
def test_ages_of_rings_are_refused(make, options):
    plan = plan_of("mlp")  # preset="paper"
    model = plan.build_seed()
    optimizer = make(model.parameters(), fused=True, **options)
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(
        gr.GrowthError,
        match=rf"{make.__name__}\(fused=True\) corrects .* Pass ages='shared' to {make.__name__}, or leave fused",
    ):
        grower_of(model, plan, optimizer)
    assert optimizer.param_groups == before and optimizer.rate_factors() == {}


@pytest.mark.parametrize("make", [gr.optim.LARS, gr.optim.AvaGrad])
def test_where_torch_has_no_kernel(make):
    words = rf"{make.__name__}\(fused=True\): torch has no fused kernel for it\. Leave fused out"
    with pytest.raises(gr.GrowthError, match=words):
        make([nn.Parameter(torch.ones(2))], fused=True)
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = make([{"params": list(model.parameters()), "fused": True}], fused=False)
    with pytest.raises(gr.GrowthError, match=words):
        grower_of(model, plan, optimizer)
