"""Steps and loads that cannot work are refused before anything is changed."""

import pytest
import torch
from torch import nn

import growthring as gr
from tests.growth_contract import Net, make_plan
from tests.optim.nets import assert_same, backward, grower_of, is_finite, snapshot, train
from tests.optim.test_bad_input import OPTIMIZERS, every, started

WRONG = {
    "shape": lambda norms: norms[:1],
    "number": lambda norms: 1.0,
    "matrix": lambda norms: norms[None],
}


@every
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.each(2)
def test_a_rule_that_returns_something_else(kind, wrong):
    """Nothing has moved when it is found out: neither other groups nor other parameters."""
    plan, model, optimizer, grower = started(
        kind, params=lambda m: [{"params": [p]} for p in m.parameters()], growths=1
    )
    optimizer.param_groups[2]["rate_adaptation"] = WRONG[wrong]  # 2.weight
    backward(model, plan, 0)
    before = snapshot(model, optimizer, grower)
    with pytest.raises(gr.GrowthError, match=r"function returned .* for '2\.weight'"):
        optimizer.step()
    optimizer.param_groups[2]["rate_adaptation"] = WRONG[wrong]
    assert_same(before, snapshot(model, optimizer, grower))


@every
def test_a_rule_that_raises(kind):
    def broken(norms):
        raise ValueError("broken rule")

    plan, model, optimizer, grower = started(kind, rate_adaptation=broken, growths=0)
    grower.grow()
    backward(model, plan, 0)
    before = snapshot(model, optimizer, grower)
    with pytest.raises(ValueError, match="broken rule"):
        optimizer.step()
    after = snapshot(model, optimizer, grower)
    assert_same(before, after)


@every
def test_a_rule_without_an_answer(kind):
    """Factors that are not finite fall back to the base rate."""
    rule = lambda norms: norms * float("nan")  # noqa: E731
    plan, model, optimizer, _ = started(kind, rate_adaptation=rule, output_rate=False)
    assert optimizer.rate_factors()["2.weight"].tolist() == [1.0, 1.0]
    train(model, plan, optimizer, 2)
    assert is_finite(model)


def embedding(kind, **options):
    net = Net(lambda s, i: s.head(s.mid(s.table(i)).relu()), table=nn.Embedding(7, 12, sparse=True),
              mid=nn.Linear(12, 8), head=nn.Linear(8, 3))  # fmt: skip
    plan = make_plan(net, torch.tensor([[0, 1, 2], [3, 1, 0]]), stages=3, preset="paper")
    model = plan.build_seed()
    params = reversed(list(model.parameters()))  # what is refused comes last
    optimizer = OPTIMIZERS[kind]([{"params": [p]} for p in params], **options)
    grower = grower_of(model, plan, optimizer)
    grower.grow()
    model(plan.example_inputs).square().mean().backward()
    assert model.table.weight.grad.is_sparse
    return plan, model, optimizer, grower


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "AvaGrad", "LARS"])
@pytest.mark.each(2)
def test_sparse_gradients_are_refused_in_time(kind):
    _, model, optimizer, grower = embedding(kind)
    before = snapshot(model, optimizer, grower)
    with pytest.raises(gr.GrowthError, match="sparse"):
        optimizer.step()
    assert_same(before, snapshot(model, optimizer, grower))


def test_sparse_gradients_without_rates_per_ring_work():
    plan, model, optimizer, grower = embedding("SGD", rate_adaptation=None, output_rate=False)
    for group in optimizer.param_groups:
        group["momentum"] = 0
    before = model.table.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(before, model.table.weight)
    model(plan.example_inputs).square().mean().backward()  # grown in mid-flight, sparse
    grower.grow()
    assert model.table.weight.grad.shape == model.table.weight.shape


@pytest.mark.parametrize("make", [gr.optim.AvaGrad, gr.optim.LARS])
def test_sparse_gradients_without_a_grower(make):
    dense, sparse = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, 2))
    optimizer = make([{"params": [dense]}, {"params": [sparse]}])
    dense.grad, sparse.grad = torch.ones(3), torch.ones(3, 2).to_sparse(1)
    with pytest.raises(gr.GrowthError, match="sparse"):
        optimizer.step()
    assert torch.equal(dense, torch.ones(3)) and not optimizer.state_dict()["state"]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_state_dict_of_other_widths(kind):
    _, _, later, _ = started(kind, growths=2)
    _, model, optimizer, grower = started(kind, growths=1)
    before = snapshot(model, optimizer, grower), optimizer.rate_factors()
    with pytest.raises(gr.GrowthError, match=r"other widths|knows 3 rings"):
        optimizer.load_state_dict(later.state_dict())
    assert_same(before, (snapshot(model, optimizer, grower), optimizer.rate_factors()))


@pytest.mark.parametrize("kind", ["SGD", "Adam", "with_rings"])
def test_a_state_dict_of_torch_of_other_widths(kind):
    """Without the record of rings, shapes alone tell."""
    plan, model, optimizer, grower = started(kind, growths=1)
    train(model, plan, optimizer, 1)
    _, _, later, _ = started(kind, growths=2)
    saved = later.state_dict()
    if not saved["state"]:
        train_plan, other, later, _ = started(kind, growths=2)
        train(other, train_plan, later, 1)
        saved = later.state_dict()
    for group in saved["param_groups"]:
        group.pop("rings")
    before = snapshot(model, optimizer, grower)
    with pytest.raises(gr.GrowthError, match="other widths"):
        optimizer.load_state_dict(saved)
    assert_same(before, snapshot(model, optimizer, grower))


@pytest.mark.parametrize("kind", ["SGD", "AvaGrad", "with_rings"])
def test_a_state_dict_that_is_not_whole(kind):
    plan, model, optimizer, grower = started(kind, growths=1)
    train(model, plan, optimizer, 1)
    saved = optimizer.state_dict()
    before = snapshot(model, optimizer, grower)
    for rings in ("{}", '{"births": [0, 1]}', '{"births": [0', 7):
        groups = [{**group, "rings": rings} for group in saved["param_groups"]]
        with pytest.raises(
            gr.GrowthError, match=r"the saved rings lack '(births|steps)': not whole"
        ):
            optimizer.load_state_dict({**saved, "param_groups": groups})
        assert_same(before, snapshot(model, optimizer, grower))


@every
def test_complex_parameters_beside_a_model(kind):
    """Extra parameters of any kind, in the same optimizer as a growing model."""
    extras = [
        nn.Parameter(torch.ones(3, 2, dtype=torch.complex128)),
        nn.Parameter(torch.tensor(1 + 1j, dtype=torch.complex128)),
        nn.Parameter(torch.tensor(2.0)),
        nn.Parameter(torch.zeros(0, 3)),
        nn.Parameter(torch.ones(4, dtype=torch.bfloat16)),
    ]
    plan, model, optimizer, grower = started(
        kind, params=lambda m: [*m.parameters(), *extras], growths=1
    )
    for _ in range(3):
        optimizer.zero_grad()
        backward(model, plan, 1)
        for p in extras:
            p.grad = torch.ones_like(p)
        optimizer.step()
    grower.grow()
    assert all(bool(torch.isfinite(p).all()) for p in extras)
    assert not torch.equal(extras[0].detach(), torch.ones_like(extras[0]))
