"""Optimizers with a train and an eval mode: asked the same in both."""

import pytest
import torch

import growthring as gr
from tests.optim.nets import grower_of, is_finite, plan_of, train


class Averaging(torch.optim.SGD):
    """Steps a copy of the weights, in train mode only, which it does not begin in."""

    is_training = False

    def train(self):
        self.is_training = True

    @torch.no_grad()
    def step(self, closure=None):
        if not self.is_training:
            raise RuntimeError("call train() first")
        for p in self.param_groups[0]["params"]:
            z = self.state[p].setdefault("z", p.detach().clone())
            if p.grad is not None:
                z.sub_(p.grad, alpha=self.param_groups[0]["lr"])
            p.lerp_(z, 0.5)


def of_schedulefree(name):
    return lambda p: getattr(pytest.importorskip("schedulefree"), name)(p, lr=0.05)


OPTIMIZERS = {
    "own": lambda p: Averaging(p, lr=0.05),
    **{
        name: of_schedulefree(name)
        for name in ("AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree")
    },
    "SGDScheduleFreeClosure": of_schedulefree("SGDScheduleFreeClosure"),
}


@pytest.mark.parametrize("mode", [None, "train", "eval"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_rings_for_a_moving_copy_are_refused_in_every_mode(kind, mode):
    w = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = OPTIMIZERS[kind]([w])
    if mode is not None and not hasattr(optimizer, mode):
        pytest.skip("it has no such mode")
    if mode is not None:
        getattr(optimizer, mode)()
    before = dict(optimizer.param_groups[0])
    with pytest.raises(gr.GrowthError) as error:
        gr.optim.with_rings(optimizer)
    assert str(error.value) == (
        f"{type(optimizer).__name__} keeps a copy of the weights ('z') that moves by a rule of its own, so rates "
        "per ring cannot be added from outside. The Grower carries its state all the same: pass it the "
        "optimizer as it is."
    )
    assert optimizer.param_groups[0] == before and not hasattr(optimizer, "rate_factors")


def test_growth_in_eval_mode():
    """Weights and the z beside them take the same step, so both modes compute the same as before."""
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = OPTIMIZERS["AdamWScheduleFree"](model.parameters())
    optimizer.train()
    grower = grower_of(model, plan, optimizer, noise=0.0)
    train(model, plan, optimizer, 4)
    results = []
    for _ in range(2):
        for mode in (optimizer.eval, optimizer.train, optimizer.eval):
            mode()
            results.append(model(plan.example_inputs).detach())
        if not results[3:]:
            grower.grow()  # in eval mode
    torch.testing.assert_close(results[:3], results[3:], rtol=1e-10, atol=1e-12)
    optimizer.train()
    train(model, plan, optimizer, 2)
    assert is_finite(model)
