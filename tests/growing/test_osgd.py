"""Dynamic OSGD: gradients that leave alone what the old data asked for, through growths and checkpoints."""

import copy
import io
import math

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as dcp

import growthring as gr
from growthring.errors import GrowthStepError, InputError
from tests.messages.test_messages import says
from tests.optim.nets import NETS, assert_same, batch, grower_of, plan_of

OPTIMIZERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=0.01),
    "ring SGD": lambda ps: gr.optim.SGD(ps, lr=0.1, momentum=0.9, rate_adaptation="norm"),
    "ring Adam": lambda ps: gr.optim.Adam(ps, lr=0.01, rate_adaptation="norm"),
    "AvaGrad": lambda ps: gr.optim.AvaGrad(ps, lr=0.1, rate_adaptation="norm"),
    "LARS": lambda ps: gr.optim.LARS(ps, lr=0.1),
    "with_rings": lambda ps: gr.optim.with_rings(
        torch.optim.RMSprop(ps, lr=0.01), rate_adaptation="norm"
    ),
}


def loss_of(outputs, targets):
    return (outputs - targets).square().mean()


def data_of(plan, model, num=3, seed=0):
    """Batches of (inputs, targets), the last one smaller."""
    out = model(batch(plan, 0)).detach()
    g = torch.Generator().manual_seed(seed)
    pairs = [
        (batch(plan, seed + i), torch.randn(out.shape, generator=g, dtype=torch.float64).to(out))
        for i in range(num)
    ]
    return [*pairs[:-1], (pairs[-1][0][:2], pairs[-1][1][:2])]


def started(net="mlp", optimizer="SGD", stages=6, **options):
    plan = plan_of(net, stages=stages)
    model = plan.build_seed()
    opt = OPTIMIZERS[optimizer](model.parameters())
    data = data_of(plan, model)
    osgd = gr.DynamicOSGD(model, opt, loss_of, data, **options)
    return model, opt, osgd, grower_of(model, plan, opt, osgd=osgd), data


def backward(model, data, i=0):
    model.zero_grad()
    loss = loss_of(model(data[i][0]), data[i][1])
    loss.backward()
    return loss


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def gradients(model):
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def whole_gradient(model, data):
    """The gradient of the mean over all examples, by torch alone."""
    twin = copy.deepcopy(model).train()
    count = sum(len(x) for x, _ in data)
    total = sum(loss_of(twin(x), y) * len(x) for x, y in data) / count
    names = [n for n, _ in twin.named_parameters()]
    found = torch.autograd.grad(total, list(twin.parameters()))
    return dict(zip(names, found, strict=True))


# The projection.


def test_a_case_by_hand():
    net = nn.Linear(2, 2, dtype=torch.float64)
    osgd = gr.DynamicOSGD(net, anneal=lambda progress: 1 - progress)
    old = {
        "weight": torch.tensor([[1.0, 2.0], [0.0, 0.0]]).double(),
        "bias": torch.tensor([2.0, 0.0]),
    }
    with osgd.accumulating() as total:
        total.add(sum((p * old[n].to(p)).sum() for n, p in net.named_parameters()), 1)
    osgd.begin_stage()
    assert osgd.weight == 1.0
    for progress, kept in ((0.0, 0.0), (0.75, 0.75)):
        net.weight.grad = torch.tensor([[3.0, 1.0], [5.0, 0.0]]).double()
        net.bias.grad = torch.tensor([2.0, 7.0]).double()
        osgd.advance(progress)
        osgd.project()
        # ⟨G, Ḡ⟩ = 3 + 2 + 4 = 9 and ⟨Ḡ, Ḡ⟩ = 1 + 4 + 4 = 9: the part along Ḡ is Ḡ itself
        weight = [[3.0 - (1 - kept), 1.0 - 2 * (1 - kept)], [5.0, 0.0]]
        assert net.weight.grad.tolist() == weight
        assert net.bias.grad.tolist() == [2.0 - 2 * (1 - kept), 7.0]


@pytest.mark.parametrize("net", NETS)
def test_at_first_the_update_is_orthogonal_to_the_old_gradient(net):
    model, _, osgd, grower, data = started(net)
    expected = whole_gradient(model, data)
    grower.grow()
    old = osgd.old_gradient
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)  # the update is the gradient
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    backward(model, data)
    raw = flat(gradients(model).values())
    osgd.project()
    sgd.step()
    update = flat([before[n] - p.detach() for n, p in model.named_parameters()])
    padded = flat([old[n] for n in before])
    cosine = update @ padded / (update.norm() * padded.norm())
    assert abs(float(cosine)) < 1e-10
    assert abs(float(raw @ padded / (raw.norm() * padded.norm()))) > 1e-4, "nothing was taken out"
    # it is the old gradient, zero for what was added, wherever that lies
    for name, tensor in old.items():
        is_new = grower.rings.mask(name, 1) if name in grower.plan.groups.specs else None
        if is_new is None or not bool(is_new.any()):
            assert torch.allclose(tensor, expected[name], rtol=1e-9, atol=1e-12), name
            continue
        assert not tensor[is_new].any()
        assert torch.allclose(tensor[~is_new], expected[name].reshape(-1), rtol=1e-9, atol=1e-12)
    assert any(bool(grower.rings.mask(n, 1).any()) for n in grower.plan.groups.specs if n in old)


def test_at_the_end_nothing_changes():
    model, _, osgd, grower, data = started()
    grower.grow()
    backward(model, data)
    before = gradients(model)
    osgd.advance(1.0)
    assert osgd.weight == 0
    osgd.project()
    assert_same(before, gradients(model))


def test_before_the_first_growth_nothing_changes():
    model, _, osgd, _, data = started()
    backward(model, data)
    before = gradients(model)
    osgd.project()
    osgd.remember()
    osgd.project()
    assert osgd.weight == 0
    assert_same(before, gradients(model))


def test_an_old_gradient_of_zero_changes_nothing():
    model, _, osgd, grower, data = started()
    with osgd.accumulating() as total:
        total.add(sum(p.sum() for p in model.parameters()) * 0.0, 1)
    assert all(not g.any() for g in osgd.old_gradient.values())
    grower.grow()
    backward(model, data)
    before = gradients(model)
    assert osgd.weight == 1.0
    osgd.project()
    assert_same(before, gradients(model))


@pytest.mark.parametrize(
    ("anneal", "expected"),
    [
        ("linear", [1.0, 0.75, 0.5, 0.0]),
        ("cosine", [1.0, 0.5 + math.sqrt(0.125), 0.5, 0.0]),
        (lambda progress: (1 - progress) ** 2, [1.0, 0.5625, 0.25, 0.0]),
    ],
)
def test_how_the_weight_falls(anneal, expected):
    _, _, osgd, grower, _ = started(anneal=anneal)
    grower.grow()
    found = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        osgd.advance(progress)
        found.append(osgd.weight)
    assert found == pytest.approx(expected, abs=1e-12)


def test_parameters_without_a_gradient_count_on_neither_side():
    model, _, osgd, grower, data = started()
    grower.grow()
    old = osgd.old_gradient
    backward(model, data)
    model[0].weight.grad = None
    osgd.project()
    assert model[0].weight.grad is None
    found = gradients(model)
    assert abs(float(flat(found.values()) @ flat([old[n] for n in found]))) < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64])
def test_other_types_of_numbers(dtype):
    w = nn.Parameter(torch.ones(300, dtype=dtype))
    net = nn.ParameterDict({"w": w})
    osgd = gr.DynamicOSGD(net)
    with osgd.accumulating() as total:
        total.add((w.real if dtype.is_complex else w).float().sum(), 1)
    osgd.begin_stage()
    w.grad = torch.linspace(0, 1, 300).to(dtype)
    osgd.project()
    along = w.grad.real.double().sum() / 300
    assert abs(float(along)) < 2e-3, "the mean is the part along ones"


# The pass.


def test_the_pass_is_the_gradient_of_the_mean_and_leaves_nothing():
    model, opt, osgd, _, data = started("residual")
    model.eval()
    backward(model, data)
    before = (
        {n: t.detach().clone() for n, t in model.state_dict().items()},
        gradients(model),
        copy.deepcopy(opt.state_dict()),
        torch.get_rng_state(),
    )
    assert osgd.remember() == sum(len(x) for x, _ in data)
    after = (dict(model.state_dict()), gradients(model), opt.state_dict(), torch.get_rng_state())
    assert_same(before, after)
    assert not model.training
    expected = whole_gradient(model, data)
    for name, found in osgd.old_gradient.items():
        assert torch.allclose(found, expected[name], rtol=1e-9, atol=1e-12), name


def test_the_next_pass_takes_the_memory_of_the_last():
    model, _, osgd, grower, _ = started()
    grower.grow()
    grower.grow()
    places = {n: g.data_ptr() for n, g in osgd.old_gradient.items()}
    osgd.remember()
    assert {n: g.data_ptr() for n, g in osgd.old_gradient.items()} == places
    assert len(places) == len(list(model.parameters()))


def test_a_pass_can_be_made_by_a_function_of_a_seed_or_over_batches_of_stages():
    model, _, _, _, data = started()
    one = gr.DynamicOSGD(model, None, loss_of, lambda seed: data)
    two = gr.DynamicOSGD(model)
    assert one.remember() == two.remember(iter(data), loss_of)
    assert_same(one.old_gradient, two.old_gradient)


def test_a_loss_that_is_not_finite_leaves_all_as_it_was():
    model, _, osgd, grower, data = started()
    grower.grow()
    backward(model, data)
    before = gradients(model)
    with pytest.raises(GrowthStepError, match="the loss is nan in the pass"):
        osgd.remember([(data[0][0] * math.nan, data[0][1])])
    assert_same(before, gradients(model))
    with pytest.raises(GrowthStepError, match="no gradient of the stage that ends"):
        osgd.begin_stage()


def test_a_pass_over_nothing():
    _, _, osgd, _, _ = started()
    says(lambda: osgd.remember([]), "had no examples", error=InputError)


# With optimizers and growths.


def run(name, anneal="linear", stop=None, start=None, net="residual", steps=4):
    """Trains two stages of so many steps; `stop` saves before a step, `start` goes on from what it saved."""
    model, opt, osgd, grower, data = started(net, name, anneal=anneal)
    if start is not None:
        saved = torch.load(io.BytesIO(start), weights_only=True)
        grower.load_state_dict(saved["grower"])
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["optimizer"])
    begun = 0 if start is None else saved["step"]
    weights = []
    for step in range(begun, 2 * steps):
        if step == stop:
            saved = {"grower": grower.state_dict(), "model": model.state_dict()}
            file = io.BytesIO()
            torch.save({**saved, "optimizer": opt.state_dict(), "step": step}, file)
            return file.getvalue()
        if step == steps and grower.stage == 0:
            grower.grow()
        backward(model, data, step % len(data))
        osgd.advance(step % steps / steps)
        weights.append(osgd.weight)
        opt.step()
    return model, opt, osgd, weights


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps_on_the_projected_gradient(name):
    model, _, osgd, weights = run(name)
    assert weights == [0, 0, 0, 0, 1.0, 0.75, 0.5, 0.25]
    plain, _, off, weights = run(name, anneal=lambda progress: 0.0)
    assert set(weights) == {0.0}
    assert (
        off.old_gradient.keys() == osgd.old_gradient.keys() == dict(model.named_parameters()).keys()
    )
    differs = [n for n, p in model.named_parameters() if not torch.equal(p, plain.get_parameter(n))]
    assert differs, "the projection reached no parameter"
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_stepped_on_is_the_projection_by_hand(name):
    model, opt, osgd, grower, data = started("mlp", name)
    grower.grow()
    twin, twin_opt = copy.deepcopy((model, opt)) if name != "with_rings" else (None, None)
    backward(model, data)
    old = flat(osgd.old_gradient.values())
    raw = gradients(model)
    share = flat(raw.values()) @ old / (old @ old)
    opt.step()
    for n, p in model.named_parameters():
        expected = raw[n] - share * osgd.old_gradient[n]
        assert torch.allclose(p.grad, expected, rtol=1e-10, atol=1e-13)
    if twin is not None and not isinstance(opt, gr.optim.SGD | gr.optim.Adam | gr.optim.AvaGrad):
        for n, p in twin.named_parameters():
            p.grad = model.get_parameter(n).grad.clone()
        twin_opt.step()
        assert_same(dict(twin.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumed_in_mid_stage_bit_for_bit(name):
    whole = run(name)
    resumed = run(name, start=run(name, stop=6))
    assert resumed[3] == whole[3][6:]
    assert_same(dict(whole[0].state_dict()), dict(resumed[0].state_dict()))
    assert_same(whole[2].old_gradient, resumed[2].old_gradient)


def test_resumed_just_before_a_growth_after_the_pass():
    model, opt, osgd, grower, _ = started()
    osgd.remember()
    state = copy.deepcopy((model.state_dict(), opt.state_dict(), grower.state_dict()))
    grower.grow()
    again, _, found, other, _ = started()
    other.load_state_dict(state[2])
    again.load_state_dict(state[0])
    other.grow()
    assert_same(osgd.old_gradient, found.old_gradient)


def test_in_a_checkpoint_of_torch_distributed(tmp_path):
    model, opt, osgd, grower, data = started()
    grower.grow()
    backward(model, data)
    osgd.advance(0.25)
    opt.step()
    dcp.save({**grower.states(), "growth": grower.state_tensor()}, checkpoint_id=tmp_path)
    again, _, found, other, _ = started()
    other.load_state_dict(gr.read_growth(tmp_path))
    dcp.load(other.states(), checkpoint_id=tmp_path)
    assert_same(dict(model.state_dict()), dict(again.state_dict()))
    assert_same(osgd.state_dict(), found.state_dict())
    assert found.weight == 0.75


def test_a_growth_that_fails_leaves_it_as_it_was(monkeypatch):
    _, _, osgd, grower, _ = started()
    osgd.remember()
    before = copy.deepcopy(osgd.state_dict())
    monkeypatch.setattr(grower._subjects.pace, "enter", lambda *_: 1 / 0)  # after it has grown
    with pytest.raises(GrowthStepError, match="ZeroDivisionError"):
        grower.grow()
    assert_same(before, osgd.state_dict())
    assert osgd.weight == 0
    monkeypatch.undo()
    grower.grow()
    assert osgd.weight == 1.0


def test_grower_step_sees_to_all_of_it():
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    plan = gr.plan(net, torch.ones(2, 4), total_steps=10, growth_at=(0.2, 0.6))
    assert plan.stage_steps == (2, 4, 4)
    model = plan.build_seed()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.randn(3, 4), torch.randn(3, 2))]
    passes = []

    def batches(seed):
        passes.append(grower.stage)
        return data

    osgd = gr.DynamicOSGD(model, opt, loss_of, batches)
    grower = gr.Grower(model, plan, opt, osgd=osgd)
    weights = []
    for _ in range(10):
        backward(model, data)
        weights.append(osgd.weight)
        opt.step()
        grower.step()
    assert weights == [0, 0, 1, 0.75, 0.5, 0.25, 1, 0.75, 0.5, 0.25]
    assert passes == [0, 1], "one pass before each growth"


def test_a_stage_without_growth():
    net = nn.Linear(2, 1, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1.0)
    osgd = gr.DynamicOSGD(net, opt, loss_of, [(torch.ones(2, 2), torch.zeros(2, 1))])
    osgd.remember()
    osgd.begin_stage()
    before = net.weight.detach().clone()
    backward(net, [(torch.tensor([[1.0, 0.0]]), torch.tensor([[9.0]]))])
    opt.step()
    moved = net.weight.detach() - before
    old = osgd.old_gradient["weight"]
    assert moved.abs().sum() > 0 and abs(float((moved * old).sum())) < 1e-5
    with pytest.raises(GrowthStepError, match="no gradient of the stage"):
        osgd.begin_stage()  # that one was not remembered
    osgd.advance(0.5)
    osgd.remember()
    osgd.begin_stage()
    assert osgd.weight == 1.0


def test_a_stage_of_a_plan_without_growth():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    plan = gr.plan(net, torch.ones(2, 4), widths={"0": [4, 4, 8]}, total_steps=9)
    model = plan.build_seed()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    osgd = gr.DynamicOSGD(model, opt, loss_of, [(torch.ones(2, 4), torch.zeros(2, 2))])
    grower = gr.Grower(model, plan, opt, osgd=osgd)
    grower.grow()
    assert osgd.weight == 1.0 and osgd.old_gradient["0.weight"].shape == (4, 4)
    grower.grow()
    assert osgd.old_gradient["0.weight"].shape == (8, 4)


def test_with_an_average_and_fading_norms():
    net = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2))
    plan = gr.plan(net, torch.randn(2, 4), total_steps=8)
    model = plan.build_seed()
    opt = torch.optim.AdamW(model.parameters())
    average = torch.optim.swa_utils.AveragedModel(model)
    data = [(torch.randn(3, 4), torch.randn(3, 2))]
    osgd = gr.DynamicOSGD(model, opt, loss_of, data)
    grower = gr.Grower(model, plan, opt, averages=average, osgd=osgd)
    for _ in range(8):
        backward(model, data)
        opt.step()
        average.update_parameters(model)
        grower.step()
    assert grower.is_complete and osgd.old_gradient["1.weight"].shape == (16,)


def test_gradient_scalers_change_nothing_of_the_direction():
    model, _, osgd, grower, data = started("mlp")
    grower.grow()
    backward(model, data)
    for p in model.parameters():
        p.grad.mul_(1024.0)
    osgd.project()
    scaled = gradients(model)
    backward(model, data)
    osgd.project()
    for n, g in gradients(model).items():
        assert torch.allclose(scaled[n] / 1024, g, rtol=1e-12, atol=1e-15)


# What is refused.


def test_a_stage_whose_length_nobody_tells():
    model, opt, _, grower, data = started()
    grower.grow()
    backward(model, data)
    opt.step()
    says(
        opt.step, "does not know how far the stage is", "Grower.step()", "advance", error=InputError
    )


def test_a_growth_without_data():
    plan = plan_of("mlp")
    model = plan.build_seed()
    osgd = gr.DynamicOSGD(model)
    grower = grower_of(model, plan, osgd=osgd)
    says(grower.grow, "no gradient of the stage that ends", "remember", error=GrowthStepError)
    assert grower.stage == 0
    says(osgd.remember, "needs batches", "batches= to DynamicOSGD", error=InputError)
    says(lambda: osgd.remember([1]), "needs a loss", error=InputError)


def test_odd_arguments():
    model, opt, osgd, _, data = started()
    plan = plan_of("mlp")
    says(lambda: gr.DynamicOSGD("net"), "not an nn.Module")
    says(lambda: gr.DynamicOSGD(model, [opt]), "list", "project()")
    says(lambda: gr.DynamicOSGD(model, anneal="square"), "square", "linear, cosine")
    says(lambda: osgd.advance(1.5), "1.5", "from 0 to 1")
    says(lambda: osgd.remember([data[0][0]]), "(inputs, targets)", "Tensor")
    says(lambda: gr.Grower(plan.build_seed(), plan, osgd=osgd), "another MLP")
    says(lambda: gr.Grower(model, plan, osgd=3), "int", "DynamicOSGD")


def test_a_report_says_what_the_pass_was():
    _, _, _, grower, data = started()
    assert f"over {sum(len(x) for x, _ in data)} examples" in str(grower.grow().notes)


def test_an_anneal_that_gives_no_weight():
    model, opt, _, grower, data = started(anneal=lambda progress: 2.0)
    grower.grow()
    backward(model, data)
    says(opt.step, "anneal gave 2.0", "from 0 to 1")


def test_closures():
    model, opt, _, grower, data = started()
    grower.grow()
    says(lambda: opt.step(lambda: backward(model, data)), "closure", "project()")
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    by_hand = gr.DynamicOSGD(model)
    by_hand.remember(data, loss_of)
    by_hand.begin_stage()

    def closure():
        loss = backward(model, data)
        by_hand.project()
        return loss

    assert math.isfinite(float(lbfgs.step(closure).detach()))


def test_sparse_gradients():
    net = nn.Embedding(5, 2, sparse=True)
    osgd = gr.DynamicOSGD(net)
    pair = (torch.tensor([1]), torch.zeros(1, 2))
    says(lambda: osgd.remember([pair], loss_of), "'weight'", "sparse=False", error=InputError)
    assert net.weight.grad is None


def test_a_state_of_another_model():
    _, _, osgd, grower, _ = started()
    osgd.remember()
    state = grower.state_dict()
    plan = plan_of("mlp")
    model = plan.build_seed()
    plain = grower_of(model, plan)
    says(lambda: plain.load_state_dict(state), "saved with DynamicOSGD", "osgd=", error=InputError)
    plain.load_state_dict({k: v for k, v in state.items() if k != "osgd"})
    says(lambda: osgd.load_state_dict({}), "not the state of a DynamicOSGD")
    wide = {**osgd.state_dict(), "gradients": {"0.weight": torch.ones(1, 1)}}
    says(lambda: osgd.load_state_dict(wide), "'0.weight'", "(1, 1)", "another model")
    before = osgd.old_gradient
    says(
        lambda: osgd.load_state_dict({**wide, "gradients": {"x": torch.ones(1)}}),
        "no such parameter",
    )
    assert_same(before, osgd.old_gradient)


def test_a_growth_that_was_saved_without_it_can_go_on_with_it():
    plan = plan_of("mlp")
    plain = grower_of(plan.build_seed(), plan)
    plain.grow()
    model, _, osgd, grower, data = started()
    grower.load_state_dict(plain.state_dict())
    assert osgd.weight == 0 and osgd.old_gradient == {}
    backward(model, data)
    osgd.project()
