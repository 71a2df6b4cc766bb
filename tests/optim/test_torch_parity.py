"""Without a Grower, the optimizers of gr.optim are torch's: steps, state, hooks, copies."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import growthring as gr
from tests.optim.nets import assert_same

T, G = torch.optim, gr.optim
SGD = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.01},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"lr": 0.1, "momentum": 0.9, "maximize": True},
    {"lr": 0.1, "momentum": 0.9, "foreach": True, "weight_decay": 0.1},
    {"lr": 0.1, "momentum": 0.9, "foreach": False, "nesterov": True},
    {"lr": 0.1, "momentum": 0.9, "fused": True},
    {"lr": torch.tensor(0.1), "momentum": 0.9},
]
ADAM = [
    {},
    {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1},
    {"amsgrad": True},
    {"amsgrad": True, "foreach": True, "maximize": True, "weight_decay": 0.1},
    {"foreach": False},
    {"fused": True, "amsgrad": True},
    {"lr": torch.tensor(0.01)},
    {"lr": torch.tensor(0.01), "fused": True},
]
DECOUPLED = {"decoupled_weight_decay": True, "weight_decay": 0.1}
CASES = (
    [(T.SGD, G.SGD, o) for o in SGD]
    + [(T.Adam, G.Adam, o) for o in [*ADAM, DECOUPLED]]
    + [(T.AdamW, G.AdamW, o) for o in ADAM]
)
cases = pytest.mark.parametrize(
    ("theirs", "ours", "options"), CASES, ids=[f"{t.__name__}-{o}" for t, _, o in CASES]
)


def parameters(dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (4,), (2, 3, 3, 3), (), (5, 2), (3, 3)]
    params = [nn.Parameter(torch.randn(s, generator=g, dtype=dtype)) for s in shapes]
    if dtype == torch.float32:
        params.append(nn.Parameter(torch.randn(3, 2, generator=g, dtype=torch.complex64)))
        params.append(nn.Parameter(torch.randn(6, generator=g).bfloat16()))
    return params


def groups(params, options):
    """Three groups with rates of their own; the last parameter of the second gets no gradient."""
    if options.get("fused"):
        params = [p for p in params if not p.is_complex()]
    lr = options.get("lr", 0.01)
    lrs = [lr, lr / 3] if not isinstance(lr, torch.Tensor) else [lr, lr.clone() / 3]
    return [{"params": params[:2]}, {"params": params[2:5], "lr": lrs[1]}, {"params": params[5:]}]


def fill(params, seed, skip=4):
    g = torch.Generator().manual_seed(seed)
    for i, p in enumerate(params):
        values = torch.randn(
            p.shape, generator=g, dtype=torch.complex64 if p.is_complex() else None
        )
        p.grad = None if i == skip else values.to(p.dtype)


def steps(optimizer, params, first=0, number=4):
    for i in range(first, first + number):
        fill(params, i)
        optimizer.step()


@cases
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_and_state_are_the_same_to_the_bit(theirs, ours, options, dtype):
    a, b = parameters(dtype), parameters(dtype)
    first, second = theirs(groups(a, options), **options), ours(groups(b, options), **options)
    steps(first, a)
    steps(second, b)
    assert_same([p.detach() for p in a], [p.detach() for p in b])
    assert not torch.equal(a[0], parameters(dtype)[0])
    assert_same(first.state_dict()["state"], second.state_dict()["state"])


@cases
def test_state_dicts_are_interchangeable(theirs, ours, options):
    for makers in ((theirs, ours), (ours, theirs)):
        a, b = parameters(), parameters()
        first, second = (
            m(groups(p, options), **options) for m, p in zip(makers, (a, b), strict=True)
        )
        steps(first, a)
        with torch.no_grad():
            for p, q in zip(a, b, strict=True):
                q.copy_(p)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        steps(first, a, 4)
        steps(second, b, 4)
        assert_same([p.detach() for p in a], [p.detach() for p in b])
        assert second.param_groups[1]["lr"] == first.param_groups[1]["lr"]


def test_options_of_groups_survive_a_state_dict_of_torch():
    """It says nothing about rings, so it must not change what was chosen for them."""
    own = {"ring_schedule": "own", "total_steps": 10, "state_at_growth": "rescale"}
    p, q, r = (nn.Parameter(torch.ones(2)) for _ in range(3))
    for optimizer in (
        G.AdamW([{"params": [p], "rate_adaptation": None, **own}]),
        G.with_rings(T.AdamW([q]), rate_adaptation="max", **own),
    ):
        before = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        optimizer.load_state_dict(T.AdamW([r]).state_dict())
        after = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        assert before == after


MAKERS = {
    "SGD": lambda p: G.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: G.Adam(p, amsgrad=True),
    "AdamW": lambda p: G.AdamW(p),
    "AvaGrad": lambda p: G.AvaGrad(p),
    "LARS": lambda p: G.LARS(p),
    "with_rings": lambda p: G.with_rings(T.NAdam(p)),
}
every = pytest.mark.parametrize("kind", MAKERS)


@every
def test_hooks_run_once_per_step(kind):
    params, calls = parameters(torch.float64), []
    optimizer = MAKERS[kind](params)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    handle = register_optimizer_step_post_hook(lambda *_: calls.append("global"))
    try:
        steps(optimizer, params, number=2)
    finally:
        handle.remove()
    assert sorted(calls) == sorted(["before", "after", "global"] * 2)


@every
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_go_on_alike(kind, how):
    params = parameters(torch.float64)
    optimizer = MAKERS[kind](params)
    steps(optimizer, params)
    pair = (params, optimizer)
    params2, twin = copy.deepcopy(pair) if how == "deepcopy" else pickle.loads(pickle.dumps(pair))
    steps(optimizer, params, 4)
    steps(twin, params2, 4)
    assert_same([p.detach() for p in params], [p.detach() for p in params2])
    assert repr(twin).splitlines()[0] == repr(optimizer).splitlines()[0]


@every
def test_closures(kind):
    params, count = parameters(torch.float64), []

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = sum(p.abs().square().sum() for p in params)
        loss.backward()
        count.append(1)
        return loss

    optimizer = MAKERS[kind](params)
    losses = [float(optimizer.step(closure).detach()) for _ in range(4)]
    assert len(count) == 4 and losses[-1] < losses[0]


@every
def test_the_profiler_and_new_groups(kind):
    params = parameters(torch.float64)
    optimizer = MAKERS[kind](params[:3])
    optimizer.add_param_group({"params": params[3:], "lr": 0.5})
    with torch.profiler.profile() as profile:
        steps(optimizer, params, number=2)
    names = [e.key for e in profile.key_averages()]
    assert sum(n.startswith("Optimizer.step#") for n in names) == 1
    assert not torch.equal(params[5], parameters(torch.float64)[5])


@pytest.mark.parametrize(("theirs", "ours"), [(T.SGD, G.SGD), (T.Adam, G.Adam)])
def test_torch_errors_are_torch_errors(theirs, ours):
    params = parameters()
    for bad in ({"lr": -1.0}, {"weight_decay": -1.0}):
        for make in (theirs, ours):
            with pytest.raises(ValueError, match="Invalid"):
                make(params, **bad)
    with pytest.raises(ValueError, match="empty parameter list"):
        ours([])


def test_sparse_gradients_of_sgd():
    a, b = parameters(), parameters()
    for make, params in ((T.SGD, a), (G.SGD, b)):
        optimizer = make(params[:1], lr=0.1)
        for i in range(3):
            fill(params, i)
            params[0].grad = params[0].grad.to_sparse(1)
            optimizer.step()
    assert_same(a[0].detach(), b[0].detach())


def test_the_counterparts_are_recognised():
    """Code that asks isinstance(optimizer, torch.optim.X) takes ours."""
    p = [nn.Parameter(torch.ones(1))]
    assert isinstance(G.SGD(p), T.SGD) and isinstance(G.Adam(p), T.Adam)
    assert isinstance(G.AdamW(p), T.Adam)
