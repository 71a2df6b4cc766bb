"""Every network under every method: exact where that is claimed, in both modes and on inputs not seen before."""

import pytest
import torch

import growthring as gr
from growthring.methods.paired import Paired
from tests.growth_contract import distance, perturb, run
from tests.methods.nets import NETS, grower_of, marked, plan_of, seed_of, tensors_of
from tests.methods.test_contract import MADE
from tests.optim.nets import assert_same

METHODS = {"paired off": Paired("off"), **MADE}
EXACT = ("paired off", "paired", "net2net", "gradmax")
NEVER_REFUSED = ("paired off", "paired", "net2net", "random")
UNDERSTOOD = ("mlp", "conv_bn", "resnet8", "wrn", "dense", "inception", "mobilenet")


def fresh(inputs, seed):
    """Other inputs of the same kind, more of them."""
    if isinstance(inputs, tuple):
        return tuple(fresh(x, seed) for x in inputs)
    g = torch.Generator().manual_seed(seed)
    shape = (inputs.shape[0] + 3, *inputs.shape[1:])
    if inputs.is_floating_point():
        return torch.randn(shape, generator=g, dtype=inputs.dtype)
    return torch.randint(0, int(inputs.max()) + 1, shape, generator=g)


def has_batch_norm(model):
    return any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in model.modules())


def loss_of(outputs, _):
    given = outputs if isinstance(outputs, tuple) else (outputs,)
    return sum(out.square().mean() for out in given)


@pytest.mark.each(20)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("method", marked(METHODS, {"paired", "net2net"}))
def test_what_is_claimed_holds_in_both_modes_on_fresh_inputs(method, net):
    plan = plan_of(net)
    model = seed_of(plan)
    given = {"batches": [(plan.example_inputs, None)], "loss": loss_of}
    start = tensors_of(model)
    try:
        grower = grower_of(model, plan, METHODS[method], **given)
    except gr.GrowthError as error:
        assert method not in NEVER_REFUSED and net not in UNDERSTOOD, error
        assert f"method '{method}' cannot grow this model" in str(error)
        assert_same(start, tensors_of(model))
        return
    while not grower.is_full:
        inputs = [plan.example_inputs, fresh(plan.example_inputs, grower.stage)]
        before = {(i, t): run(model, x, t)[0] for i, x in enumerate(inputs) for t in (False, True)}
        report = grower.grow()
        claims = not any("function changes" in note for note in report.notes)
        is_still = plan.stage_widths[grower.stage] == plan.stage_widths[grower.stage - 1]
        assert is_still or claims == (method in EXACT), report.notes
        for (i, training), outputs in before.items():
            for a, b in zip(outputs, run(model, inputs[i], training)[0], strict=True):
                assert a.dtype == b.dtype == torch.float64 and bool(torch.isfinite(b).all())
                # ε of a norm over batches shows where what it reads is rescaled
                shows = method == "paired" and training and has_batch_norm(model)
                limit = 1e-4 if shows else 1e-12
                change = distance(a, b)
                assert not claims or change <= limit, (grower.stage, i, training, change)
        perturb(model, 10 + grower.stage)
    grower.finish()
    shapes = {n: t.shape for n, t in model.state_dict().items()}
    assert shapes == {n: t.shape for n, t in plan.model.state_dict().items()}
