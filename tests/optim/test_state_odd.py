"""State that is not of the parameter's shape, or is refused."""

import copy

import pytest
import torch
from torch import nn

import growthring as gr
from tests.growth_contract import Net, make_plan
from tests.optim.nets import (
    assert_same,
    backward,
    grower_of,
    is_finite,
    is_old,
    plan_of,
    snapshot,
    train,
)

T = torch.optim


def started(make, net="mlp", steps=2, params=lambda m: m.parameters(), **options):
    plan = plan_of(net)
    model = plan.build_seed()
    optimizer = make(params(model))
    grower = grower_of(model, plan, optimizer, **options)
    train(model, plan, optimizer, steps)
    return plan, model, optimizer, grower


def rows_and_columns(optimizer, p, keys):
    return [optimizer.state[p][key].clone() for key in keys]


@pytest.mark.parametrize("net", ["mlp", "residual", "attention"])
def test_adafactor_keeps_a_number_per_row_and_per_column(net):
    plan, model, optimizer, grower = started(lambda p: T.Adafactor(p, lr=0.01), net)
    name = {"mlp": "2.weight", "residual": "a.weight", "attention": "qkv.weight"}[net]
    p = model.get_parameter(name)
    before = rows_and_columns(optimizer, p, ("row_var", "col_var"))
    grower.grow()
    rows, columns = grower.rings.axis_rings(name)[0], grower.rings.axis_rings(name)[-1]
    after = rows_and_columns(optimizer, p, ("row_var", "col_var"))
    assert after[0].shape == (*p.shape[:-1], 1)
    assert after[1].shape == (*p.shape[:-2], 1, p.shape[-1])
    mask = is_old(grower, name)
    assert torch.equal(after[0][mask.any(-1, keepdim=True)], before[0].flatten())
    assert torch.equal(after[1][mask.any(-2, keepdim=True)], before[1].flatten())
    assert not bool(after[0][~mask.any(-1, keepdim=True)].any())
    assert len(rows) == p.shape[0] and len(columns) == p.shape[-1]
    train(model, plan, optimizer, 3, seed=1)
    assert is_finite(model)


def test_the_adafactor_of_transformers():
    module = pytest.importorskip("transformers.optimization")
    if not hasattr(module, "Adafactor"):
        pytest.skip("this transformers has no Adafactor")
    plan, model, optimizer, grower = started(
        lambda p: module.Adafactor(p, lr=1e-3, relative_step=False, beta1=0.9), "residual"
    )
    p = model.get_parameter("a.weight")
    before = copy.deepcopy(dict(optimizer.state[p]))
    grower.grow()
    state, old = optimizer.state[p], is_old(grower, "a.weight")
    assert torch.equal(state["exp_avg"][old], before["exp_avg"].flatten())
    assert state["exp_avg_sq_row"].shape == p.shape[:-1]
    assert state["exp_avg_sq_col"].shape == p.shape[:-2] + p.shape[-1:]
    assert torch.equal(state["exp_avg_sq_row"][old.any(-1)], before["exp_avg_sq_row"].flatten())
    train(model, plan, optimizer, 3, seed=1)
    assert is_finite(model)


def test_muon_on_matrices_beside_another_optimizer():
    if not hasattr(T, "Muon"):
        pytest.skip("this torch has no Muon")
    plan = plan_of("attention")
    model = plan.build_seed()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    muon = gr.optim.with_rings(T.Muon(matrices, lr=0.01))
    other = gr.optim.AdamW(vectors)
    grower = grower_of(model, plan, [muon, other])
    for stage in range(3):
        for i in range(2):
            model.zero_grad()
            backward(model, plan, 10 * stage + i)
            muon.step()
            other.step()
        before = {p: muon.state[p]["momentum_buffer"].clone() for p in matrices}
        grower.grow()
        for name, p in model.named_parameters():
            if p.dim() == 2:
                new = muon.state[p]["momentum_buffer"]
                assert torch.equal(new[is_old(grower, name)], before[p].flatten())
    assert is_finite(model)
    assert set(muon.rate_factors()) | set(other.rate_factors()) == set(
        dict(model.named_parameters())
    )


def sparse_net():
    net = Net(lambda s, i: s.head(s.mid(s.table(i)).relu()), table=nn.Embedding(7, 12, sparse=True),
              mid=nn.Linear(12, 8), head=nn.Linear(8, 3))  # fmt: skip
    return make_plan(net, torch.tensor([[0, 1, 2], [3, 1, 0]]), stages=3, preset="paper")


def test_sparse_adam():
    plan = sparse_net()
    model = plan.build_seed()
    sparse = T.SparseAdam([model.table.weight], lr=0.01)
    dense = T.Adam([p for n, p in model.named_parameters() if n != "table.weight"])
    grower = grower_of(model, plan, [sparse, dense])

    def step():
        model.zero_grad()
        model(plan.example_inputs).square().mean().backward()
        sparse.step()
        dense.step()

    step()
    before = sparse.state[model.table.weight]["exp_avg"].clone()
    assert bool(before.any())
    grower.grow()
    after = sparse.state[model.table.weight]["exp_avg"]
    old = is_old(grower, "table.weight")
    assert torch.equal(after[old], before.flatten()) and not bool(after[~old].any())
    step()
    assert is_finite(model)


@pytest.mark.parametrize("first", [0, 1])
def test_lbfgs_is_refused_by_name_then_reset(first):
    plan = plan_of("mlp")
    model = plan.build_seed()
    params = list(model.parameters())
    params = params[first * 5 :] + params[: first * 5]  # also with a first one that never grows
    optimizer = T.LBFGS(params, lr=0.1, max_iter=3)
    grower = grower_of(model, plan, optimizer)

    def closure():
        optimizer.zero_grad()
        return backward_loss()

    def backward_loss():
        loss = model(plan.example_inputs).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    before = snapshot(model, optimizer, grower)
    with pytest.raises(gr.GrowthError, match=r"state '\w+'.*LBFGS.*unknown_state='reset'"):
        grower.grow()
    assert_same(before, snapshot(model, optimizer, grower))
    optimizer.step(closure)
    grower = grower_of(model, plan, optimizer, unknown_state="reset")
    report = grower.grow()
    assert any("LBFGS" in note for note in report.notes)
    losses = [float(optimizer.step(closure).detach()) for _ in range(3)]
    assert losses[-1] < losses[0] and is_finite(model)


class Listed(T.SGD):
    """Keeps its last gradients in a list."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p].setdefault("last", []).append(p.grad.clone())
                    self.state[p]["last"] = self.state[p]["last"][-2:]
        return super().step(closure)


def test_a_list_of_tensors_is_refused_by_name_then_reset():
    plan, model, optimizer, grower = started(lambda p: Listed(p, lr=0.01, momentum=0.9))
    before = snapshot(model, optimizer, grower)
    with pytest.raises(gr.GrowthError, match=r"state 'last' of '0.weight' in Listed is a list"):
        grower.grow()
    assert_same(before, snapshot(model, optimizer, grower))
    train(model, plan, optimizer, 1)
    grower = grower_of(model, plan, optimizer, unknown_state="reset")
    report = grower.grow()
    assert any("'last'" in note for note in report.notes)
    assert not optimizer.state.get(model.get_parameter("0.weight"))
    assert len(optimizer.state[model.get_parameter("4.bias")]["last"]) == 2  # it did not grow
    train(model, plan, optimizer, 2)
    assert is_finite(model)


def test_state_that_only_comes_later_is_refused():
    """A dummy's first step does not show it: better refused than kept in the wrong shape."""

    class Late(T.SGD):
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                self.state[p]["count"] = self.state[p].get("count", 0) + 1
                if self.state[p]["count"] == 2:
                    self.state[p]["anchor"] = p.detach().clone()
            return super().step(closure)

    _, model, optimizer, grower = started(lambda p: Late(p, lr=0.01))
    before = snapshot(model, optimizer, grower)
    with pytest.raises(gr.GrowthError, match=r"state 'anchor' of '0\.weight' in Late"):
        grower.grow()
    assert_same(before, snapshot(model, optimizer, grower))


def test_a_refusal_by_the_second_optimizer_leaves_the_first_alone():
    plan = plan_of("mlp")
    model = plan.build_seed()
    params = list(model.parameters())
    first, second = gr.optim.Adam(params[:2]), Listed(params[2:4], lr=0.01)  # two are in none
    grower = grower_of(model, plan, [first, second])
    backward(model, plan, 0)
    first.step()
    second.step()
    before = snapshot(model, [first, second], grower)
    factors = first.rate_factors()
    with pytest.raises(gr.GrowthError, match="'last'"):
        grower.grow()
    assert_same(before, snapshot(model, [first, second], grower))
    assert_same(factors, first.rate_factors())
    first.step()
    second.state.clear()
    grower.grow()
    assert len(first.rate_factors()["0.weight"]) == 2 and "4.weight" not in first.rate_factors()
