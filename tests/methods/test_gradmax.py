"""gradmax: its matrix against autograd through really grown networks, its vectors against brute force."""

import copy
import math
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import growthring as gr
from growthring import zoo
from growthring.errors import InputError
from growthring.methods.base import Job, Step
from growthring.methods.gradients import gradient_matrices, leading_vectors
from growthring.methods.gradmax import GradMax
from growthring.methods.search import DataSearch
from growthring.methods.trialcopies import searching_copy
from tests.growth_contract import Net, distance, randn
from tests.methods.nets import (
    batches_of,
    grower_of,
    planned,
    seed_of,
    tensors_of,
    train,
)


def loss(outputs, targets):
    """Squares: the gradients of a cross entropy sum to 0, which would take a rank away."""
    outputs = outputs.flatten(2).mean(2) if outputs.dim() > 2 else outputs
    return F.mse_loss(outputs, 2.0 * F.one_hot(targets, 3))


@dataclass(frozen=True)
class Case:
    """A network, the shape of one example, and the layers that write each growing group, in order."""

    make: object
    shape: tuple
    writers: dict
    filters: tuple = field(default=())  # depthwise: new ones pass their unit on


def chain(*layers):
    return lambda: nn.Sequential(*layers)


def conv(first, second):
    """A convolution, an activation with σ'(0) = 1, and a convolution that reads it."""
    return chain(nn.Conv2d(2, 5, **first), nn.Tanh(), nn.Conv2d(5, 3, **second))


def branches(self, x):
    """Two blocks around a stream: three writers, four readers, one of them behind a pooling."""
    h = self.stem(x)
    h = h + self.b1(self.n1(self.a1(h.tanh())).tanh())
    h = h + self.b2(self.a2(h.tanh()).tanh())
    return self.head(h.tanh().mean((2, 3)))


def stream():
    return Net(
        branches,
        stem=nn.Conv2d(2, 5, 3, padding=1),
        a1=nn.Conv2d(5, 6, 3, padding=1),
        n1=nn.BatchNorm2d(6),
        b1=nn.Conv2d(6, 5, 1),
        a2=nn.Conv2d(5, 7, 1),
        b2=nn.Conv2d(7, 5, 3, padding=1),
        head=nn.Linear(5, 3),
    )


def recurrent(self, x):
    h = self.a(x).tanh()
    for _ in range(3):
        h = self.again(h).tanh()
    return self.head(h)


def separable(stride, kernel=3, padding=1):
    return chain(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.Tanh(),
        nn.Conv2d(5, 5, kernel, stride=stride, padding=padding, groups=5, bias=False),
        nn.BatchNorm2d(5),
        nn.Tanh(),
        nn.Conv2d(5, 3, 1),
    )


IMAGE = (2, 6, 6)
ONE = {"0": ["0.weight"]}
CASES: dict[str, Case] = {
    "linear": Case(
        chain(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)),
        (4,),
        {"0": ["0.weight"], "2": ["2.weight"]},
    ),
    "sequence": Case(
        lambda: Net(
            lambda self, x: self.b(self.a(x).tanh()).mean(1), a=nn.Linear(4, 5), b=nn.Linear(5, 3)
        ),
        (6, 4),
        {"a": ["a.weight"]},
    ),
    "no bias": Case(chain(nn.Linear(4, 5, bias=False), nn.Identity(), nn.Linear(5, 3)), (4,), ONE),
    "kernels 1 and 3": Case(conv({"kernel_size": 1}, {"kernel_size": 3, "padding": 1}), IMAGE, ONE),
    "kernels 3 and 1": Case(conv({"kernel_size": 3}, {"kernel_size": 1}), IMAGE, ONE),
    "kernels 5 and 3": Case(
        conv({"kernel_size": 5, "padding": 2}, {"kernel_size": 3, "padding": 1}), IMAGE, ONE
    ),
    "strides": Case(
        conv(
            {"kernel_size": 3, "stride": 2, "padding": 1},
            {"kernel_size": 3, "stride": 2, "padding": 1},
        ),
        (2, 9, 9),
        ONE,
    ),
    "a stride that leaves a rest": Case(
        conv({"kernel_size": 3}, {"kernel_size": 2, "stride": 3}), (2, 8, 9), ONE
    ),
    "dilations": Case(
        conv(
            {"kernel_size": 3, "dilation": 2, "padding": 2},
            {"kernel_size": 3, "dilation": (1, 2), "padding": (0, 1)},
        ),
        (2, 7, 6),
        ONE,
    ),
    "valid": Case(
        conv({"kernel_size": 3, "padding": "valid"}, {"kernel_size": 3, "padding": "valid"}),
        IMAGE,
        ONE,
    ),
    "same": Case(
        conv({"kernel_size": 3, "padding": "same"}, {"kernel_size": 5, "padding": "same"}),
        IMAGE,
        ONE,
    ),
    "same, even kernels": Case(
        conv({"kernel_size": 4, "padding": "same"}, {"kernel_size": 2, "padding": "same"}),
        IMAGE,
        ONE,
    ),
    "oblong": Case(
        conv({"kernel_size": (1, 3), "padding": (0, 1)}, {"kernel_size": (3, 2), "stride": (1, 2)}),
        (2, 5, 8),
        ONE,
    ),
    "batch norm": Case(
        chain(nn.Conv2d(2, 5, 3, bias=False), nn.BatchNorm2d(5), nn.Tanh(), nn.Conv2d(5, 3, 3)),
        IMAGE,
        ONE,
    ),
    "1-d": Case(
        chain(nn.Conv1d(2, 5, 3, padding=1), nn.Tanh(), nn.Conv1d(5, 3, 3, stride=2)), (2, 9), ONE
    ),
    "average pooling": Case(
        chain(nn.Conv2d(2, 5, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(5, 3, 3)),
        (2, 8, 8),
        ONE,
    ),
    "global pooling": Case(
        chain(
            nn.Conv2d(2, 5, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)
        ),
        IMAGE,
        ONE,
    ),
    "stream": Case(
        stream,
        IMAGE,
        {
            "stem": ["stem.weight", "b1.weight", "b2.weight"],
            "a1": ["a1.weight"],
            "a2": ["a2.weight"],
        },
    ),
    "recurrent": Case(
        lambda: Net(recurrent, a=nn.Linear(4, 5), again=nn.Linear(5, 5), head=nn.Linear(5, 3)),
        (4,),
        {"a": ["a.weight", "again.weight"]},
    ),
    "depthwise": Case(separable(1), IMAGE, ONE, filters=("3.weight",)),
    "depthwise with stride": Case(separable(2), IMAGE, ONE, filters=("3.weight",)),
    "depthwise with stride on odd sizes": Case(
        separable(2, 5, 2), (2, 7, 7), ONE, filters=("3.weight",)
    ),
    "depthwise without padding": Case(separable(1, 3, 0), IMAGE, ONE, filters=("3.weight",)),
    "overlapping pooling": Case(
        chain(nn.Conv2d(2, 5, 3), nn.Tanh(), nn.AvgPool2d(3, 2, 1), nn.Conv2d(5, 3, 2)), IMAGE, ONE
    ),
    # ways between layers that are neither pooling nor a filter
    "padding by itself": Case(
        chain(nn.Conv2d(2, 5, 3), nn.Tanh(), nn.ZeroPad2d(1), nn.Conv2d(5, 3, 3)), IMAGE, ONE
    ),
    "reflected padding": Case(
        chain(
            nn.Conv2d(2, 5, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(5, 3, 3, padding=1, padding_mode="reflect"),
        ),
        IMAGE,
        ONE,
    ),
    "upsampling": Case(
        chain(nn.Conv2d(2, 5, 3), nn.Tanh(), nn.Upsample(scale_factor=2), nn.Conv2d(5, 3, 3)),
        IMAGE,
        ONE,
    ),
    "cropping": Case(
        lambda: Net(
            lambda self, x: self.b(self.a(x).tanh()[:, :, 1:, 2:]),
            a=nn.Conv2d(2, 5, 3),
            b=nn.Conv2d(5, 3, 2),
        ),
        IMAGE,
        {"a": ["a.weight"]},
    ),
}


def prepared(case, num=3):
    plan = planned(lambda: (case.make(), randn(4, *case.shape)))
    model = seed_of(plan).eval()
    return plan, model, batches_of(case.shape, 3, num=num)


def matrices(plan, model, batches, examples=10**6):
    """The library's M of every group by name, over all batches."""
    step = Step(plan, plan.stage_widths[0], plan.stage_widths[1], "off")
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    job = Job(step, model, tensors, torch.Generator().manual_seed(0), batches, loss)
    examples = min(examples, sum(len(y) for _, y in batches))
    found = gradient_matrices(job, DataSearch(job), searching_copy(model), examples)
    names = {g.key: g.name for g in plan.groups.growable}
    return {names[key]: value for key, value in found.items()}


def grown_by_hand(plan, model, filters=()):
    """The next stage's model: old entries as they are, new rows 0, new columns random, norms the identity."""
    wide = copy.deepcopy(plan.model).eval()
    g = torch.Generator().manual_seed(8)
    old, norms = tensors_of(model), {n for n, m in wide.named_modules() if hasattr(m, "eps")}
    state = {}
    for name, like in wide.state_dict().items():
        before, new = old[name], torch.zeros_like(like)
        path, _, part = name.rpartition(".")
        if path in norms and before.dim():
            new += {"weight": 1, "running_var": 1}.get(part, 0)
        elif name in filters:
            new[:, 0, like.shape[2] // 2, like.shape[3] // 2] = 1
        elif before.dim() > 1 and like.shape[1] > before.shape[1]:
            part = new[: before.shape[0], before.shape[1] :]
            part.copy_(torch.randn(part.shape, generator=g, dtype=torch.float64))
        new[tuple(slice(n) for n in before.shape)] = before
        state[name] = new
    wide.load_state_dict(state)
    return wide


def summed(model, batches):
    """The sum over batches of the loss."""
    return sum(loss(model(x), y) for x, y in batches)


@pytest.mark.each(6)
@pytest.mark.parametrize("name", CASES)
def test_the_matrix_is_what_autograd_finds_in_a_grown_network(name):
    """In-weights' gradient = M · out-weights, for random out-weights of every new unit."""
    case = CASES[name]
    plan, model, batches = prepared(case)
    assert {g.name for g in plan.groups.growable} == set(case.writers)
    found = matrices(plan, model, batches)
    wide = grown_by_hand(plan, model, case.filters)
    assert distance(model(batches[0][0]).detach(), wide(batches[0][0]).detach()) < 1e-12
    summed(wide, batches).backward()
    old, new = tensors_of(model), dict(wide.named_parameters())
    for group, writers in case.writers.items():
        matrix, readers = found[group]
        first, last = plan.widths(group)
        for j in range(last - first):
            out = [column(new[r.spec.name], old[r.spec.name], j) for r in readers]
            rows = [row(new[w].grad, old[w], j) for w in writers]
            torch.testing.assert_close(
                matrix @ torch.cat(out), torch.cat(rows), rtol=1e-9, atol=1e-12
            )


def column(weight, old, j):
    """What a weight's old units read the j-th new unit with."""
    return weight.detach()[: old.shape[0], old.shape[1] + j].flatten()


def row(weight, old, j):
    """What the j-th new unit reads old units with."""
    return weight[old.shape[0] + j, : old.shape[1]].flatten()


def test_a_concatenation_reads_new_units_in_the_middle():
    def make():
        return Net(
            lambda self, x: self.c(torch.cat([self.a(x).tanh(), x, self.b(x).tanh()], 1)),
            a=nn.Conv2d(2, 5, 3, padding=1),
            b=nn.Conv2d(2, 6, 1),
            c=nn.Conv2d(13, 3, 3),
        )

    plan, model, batches = prepared(Case(make, IMAGE, {}))
    found = matrices(plan, model, batches)
    wide = copy.deepcopy(plan.model).eval()
    g = torch.Generator().manual_seed(8)
    (a, a_full), (b, b_full) = plan.widths("a"), plan.widths("b")
    old = [*range(a), a_full, a_full + 1, *range(a_full + 2, a_full + 2 + b)]
    with torch.no_grad():
        for name, n in (("a", a), ("b", b)):
            for part in (wide.get_submodule(name), model.get_submodule(name)):
                assert part.weight.shape[0] in (n, a_full, b_full)
            wide.get_submodule(name).weight.zero_()[:n] = model.get_submodule(name).weight
            wide.get_submodule(name).bias.zero_()[:n] = model.get_submodule(name).bias
        drawn = torch.randn(wide.c.weight.shape, generator=g, dtype=torch.float64)
        wide.c.weight.copy_(drawn)[:, old] = model.c.weight
        wide.c.bias.copy_(model.c.bias)
    summed(wide, batches).backward()
    for name, n, new in (
        ("a", a, range(a, a_full)),
        ("b", b, range(2 + a_full + b, 2 + a_full + b_full)),
    ):
        for j, where in enumerate(new):
            expected = wide.get_submodule(name).weight.grad[n + j].flatten()
            out = wide.c.weight.detach()[:, where].flatten()
            torch.testing.assert_close(found[name][0] @ out, expected, rtol=1e-9, atol=1e-12)


# Singular values against brute force.


class OneMore:
    """One new unit of a group with given out-weights: the norm of its in-weights' gradient."""

    def __init__(self, name):
        self.case = CASES[name]
        self.plan, self.model, self.batches = prepared(self.case, num=2)
        self.wide = grown_by_hand(self.plan, self.model, self.case.filters)
        self.old = tensors_of(self.model)
        (self.group, self.writers), *_ = self.case.writers.items()
        group = self.plan.groups[self.group]
        self.readers = [n for n in group.tensors("reads") if n not in self.case.filters]
        self.sizes = [self._column(n).numel() for n in self.readers]
        with torch.no_grad():  # the other new units are read with nothing
            for name, p in self.wide.named_parameters():
                before = self.old[name]
                if p.dim() > 1 and p.shape[1] > before.shape[1]:
                    p[:, before.shape[1] :] = 0

    def _column(self, name):
        return self.wide.get_parameter(name)[: self.old[name].shape[0], self.old[name].shape[1]]

    def gradient(self, out):
        """Of the new unit's in-weights, as a differentiable function of its out-weights."""
        values = dict(self.wide.named_parameters())
        for name, part in zip(self.readers, out.split(self.sizes), strict=True):
            weight = values[name].detach().clone()
            n, m = self.old[name].shape[:2]
            weight[:n, m] = part.reshape(weight[:n, m].shape)
            values[name] = weight
        inputs = []
        for name in self.writers:  # a writer may read what it writes: its rows are set apart
            weight = values[name]
            if not weight.requires_grad:
                weight = values[name] = weight + torch.zeros_like(weight).requires_grad_()
            inputs.append(weight)
        total = sum(loss(functional_call(self.wide, values, (x,)), y) for x, y in self.batches)
        found = torch.autograd.grad(total, inputs, create_graph=True)
        rows = [row(g, self.old[w], 0) for g, w in zip(found, self.writers, strict=True)]
        return torch.cat(rows)

    def ascend(self, steps=400, beside=()):
        """The largest gradient norm over out-weights of norm 1 (orthogonal to some), by gradient ascent."""
        g = torch.Generator().manual_seed(1)
        out = torch.randn(sum(self.sizes), generator=g, dtype=torch.float64)
        norms = []
        for _ in range(steps):
            for other in beside:
                out = out - (out @ other) * other
            out = (out / out.norm()).requires_grad_()
            norm = self.gradient(out).norm()
            (slope,) = torch.autograd.grad(norm, out)
            norms.append(float(norm.detach()))
            if len(norms) > 2 and abs(norms[-1] - norms[-2]) <= 1e-12 * norms[-1]:
                break
            out = (out + 50 * slope / slope.norm()).detach()
        return norms[-1], out.detach()


BRUTE = ["linear", "kernels 1 and 3", "strides", "global pooling", "stream", "recurrent"]


@pytest.mark.parametrize("name", BRUTE)
@pytest.mark.each(2)
def test_ascent_reaches_the_singular_values_and_nothing_exceeds_them(name):
    one = OneMore(name)
    matrix, _ = matrices(one.plan, one.model, one.batches)[one.group]
    values = torch.linalg.svdvals(matrix)
    first, direction = one.ascend()
    assert first == pytest.approx(float(values[0]), rel=1e-6)
    second, _ = one.ascend(beside=[direction])
    assert second == pytest.approx(float(values[1]), rel=1e-5)
    g = torch.Generator().manual_seed(2)
    for _ in range(30):
        out = torch.randn(sum(one.sizes), generator=g, dtype=torch.float64)
        norm = float(one.gradient(out / out.norm()).norm().detach())
        assert norm <= float(values[0]) * (1 + 1e-9)


@pytest.mark.parametrize("name", BRUTE)
def test_new_units_get_the_leading_directions_at_the_right_norm(name):
    """Gradient norms of the grown network = singular values found by hand, times the vectors' norm."""
    one = OneMore(name)
    basis = torch.eye(sum(one.sizes), dtype=torch.float64)
    by_hand = torch.stack([one.gradient(e).detach() for e in basis], 1)
    values = torch.linalg.svdvals(by_hand)
    first, last = one.plan.widths(one.group)
    method = GradMax(scale=0.7, examples=16)
    grower_of(one.model, one.plan, method, batches=one.batches, loss=loss).grow()
    squares = 0
    for reader in one.readers:
        squares = squares + one.old[reader].movedim(1, 0).flatten(1).square().sum(1)
    length = 0.7 * float(squares.sqrt().mean())
    new = dict(one.model.named_parameters())
    summed(one.model.eval(), one.batches).backward()
    outs = []
    rank = int((values > 1e-9 * values[0]).sum())
    assert rank >= 2
    for j in range(min(rank, last - first)):
        out = torch.cat([column(new[r], one.old[r], j) for r in one.readers])
        assert float(out.norm()) == pytest.approx(length, rel=1e-9)
        gradient = torch.cat([row(new[w].grad, one.old[w], j) for w in one.writers])
        assert float(gradient.norm()) == pytest.approx(length * float(values[j]), rel=1e-7)
        outs.append(out / length)
    table = torch.stack(outs)
    torch.testing.assert_close(table @ table.T, torch.eye(len(table), dtype=torch.float64))


# Above random, in networks as they are used.


def relu_mlp():
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3))


def relu_convs():
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 9, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(9, 3),
    )


@pytest.mark.parametrize(("make", "shape"), [(relu_mlp, (6,)), (relu_convs, (2, 6, 6))])
@pytest.mark.each(2)
def test_gradient_norms_above_random_out_weights_of_the_same_norm(make, shape):
    plan = planned(lambda: (make(), randn(4, *shape)), start=0.75)  # each group grows by two
    model, batches = seed_of(plan), batches_of(shape, 3)
    old = tensors_of(model)
    grower_of(model, plan, "gradmax", noise=1e-3, batches=batches, loss=loss).grow()

    def norm(twin):
        twin.zero_grad()
        summed(twin.eval(), batches).backward()
        new = [
            p.grad[len(old[n]) :, : old[n].shape[1]].square().sum()
            for n, p in twin.named_parameters()
            if p.dim() > 1
        ]
        return float(sum(new).sqrt())

    best, others = norm(model), []
    for seed in range(8):
        twin, g = copy.deepcopy(model), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, p in twin.named_parameters():
                n = old[name].shape
                if p.dim() > 1 and p.shape[1] > n[1]:
                    part = p[: n[0], n[1] :]
                    drawn = torch.randn(part.shape, generator=g, dtype=torch.float64)
                    sizes = [t.movedim(1, 0).flatten(1).norm(dim=1) for t in (part, drawn)]
                    factor = sizes[0] / sizes[1]
                    part.copy_(drawn * factor.reshape(1, -1, *[1] * (p.dim() - 2)))
        others.append(norm(twin))
    assert best > max(others) > 0, (best, others)
    assert best > 1.2 * sum(others) / len(others), (best, others)


# What else a growth does.


@pytest.mark.parametrize("name", ["linear", "batch norm", "average pooling", "stream", "depthwise"])
@pytest.mark.each(2)
def test_outputs_stay_and_new_rows_are_zero(name):
    plan, model, batches = prepared(CASES[name])
    old = tensors_of(model)
    outputs = {}
    for mode in (False, True):
        outputs[mode] = copy.deepcopy(model).train(mode)(batches[0][0]).detach()
    report = grower_of(model, plan, "gradmax", batches=batches, loss=loss).grow()
    for mode, before in outputs.items():
        assert distance(before, copy.deepcopy(model).train(mode)(batches[0][0]).detach()) <= 1e-12
    assert report.change.relative <= 1e-12
    assert all("random out-weights" in note for note in report.notes)
    assert report.search_flops > 0 and report.search_examples >= 24
    for name, p in model.named_parameters():
        rows = p.detach()[len(old[name]) :]
        is_filter = p.dim() == 4 and p.shape[1] == 1
        path = name.rpartition(".")[0]
        if isinstance(model.get_submodule(path), nn.BatchNorm2d):
            assert bool((rows == (1 if name.endswith("weight") else 0)).all()), name
        elif is_filter:
            assert bool((rows.flatten(1) == torch.eye(9, dtype=torch.float64)[4]).all())
        else:
            assert not bool(rows.any()), name
    for name, b in model.named_buffers():
        if b.dim():
            assert bool((b[len(old[name]) :] == (1 if name.endswith("var") else 0)).all())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.each(3)
def test_noise_lifts_new_units_off_the_kink_of_a_relu(bias, norm):
    def make():
        inner = [nn.BatchNorm1d(9)] if norm else []
        return nn.Sequential(nn.Linear(6, 9, bias=bias), *inner, nn.ReLU(), nn.Linear(9, 3))

    found = {}
    for noise in (0.0, 1e-2):
        plan, model, batches = prepared(Case(make, (6,), {}))
        n = model[0].weight.shape[0]
        grower_of(model, plan, "gradmax", noise=noise, batches=batches, loss=loss).grow()
        summed(model.eval(), batches).backward()
        found[noise] = model[0].weight.grad[n:].norm(dim=1)
    assert not bool(found[0.0].any()), "torch's ReLU has no slope at 0"
    assert bool((found[1e-2] > 0).all())


def test_a_grown_relu_network_learns_with_its_new_units():
    plan, model, batches = prepared(Case(relu_mlp, (6,), {}))
    n = model[0].weight.shape[0]
    grower_of(model, plan, "gradmax", noise=1e-3, batches=batches, loss=loss).grow()
    start = model[0].weight.detach()[n:].clone()
    train(model, plan, torch.optim.SGD(model.parameters(), lr=0.1), steps=5)
    assert bool(((model[0].weight.detach()[n:] - start).norm(dim=1) > 1e-4).all())


@pytest.mark.parametrize("examples", [1, 512])
def test_a_rank_below_the_number_of_new_units_is_noted(examples):
    """One example gives rank 1, however often it is seen."""
    plan = planned(
        lambda: (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), randn(4, 4))
    )
    model = seed_of(plan)
    before = model(randn(5, 4)).detach()
    batches, method = [(randn(1, 4, seed=3), torch.tensor([1]))], GradMax(examples=examples)
    report = grower_of(model, plan, method, batches=batches, loss=loss).grow()
    assert any("5 of 6 new units" in n and "rank 1" in n for n in report.notes), report.notes
    assert distance(before, model(randn(5, 4)).detach()) <= 1e-12
    columns = model[2].weight.detach()[:, 2:]
    norms = columns.norm(dim=0)
    torch.testing.assert_close(norms, norms[:1].expand(6))


def test_no_gradient_at_all_is_noted():
    plan = planned(
        lambda: (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), randn(4, 4))
    )
    model = seed_of(plan)
    report = grower_of(
        model, plan, "gradmax", batches=[(randn(2, 4), None)], loss=lambda out, _: 0 * out.sum()
    ).grow()
    assert any("6 of 6" in n and "rank 0" in n for n in report.notes), report.notes


@pytest.mark.parametrize(("examples", "seen"), [(1, 8), (8, 8), (10, 16), (24, 24), (40, 40)])
def test_how_many_examples_the_matrix_is_taken_over(examples, seen):
    """Whole batches, and from the start again where the data has fewer."""
    plan, model, batches = prepared(CASES["linear"])
    method = GradMax(examples=examples)
    report = grower_of(model, plan, method, batches=batches, loss=loss).grow()
    assert report.search_examples == seen


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (1100, 1060)])
def test_leading_vectors(shape):
    g = torch.Generator().manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(shape[0], 20, generator=g, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(shape[1], 20, generator=g, dtype=torch.float64))
    matrix = left * torch.arange(20, 0, -1.0, dtype=torch.float64) @ right.T
    state = torch.get_rng_state()
    found, rank = leading_vectors(matrix, 4, torch.Generator().manual_seed(1))
    assert torch.equal(state, torch.get_rng_state())
    assert rank == 4
    torch.testing.assert_close((found @ right).abs(), torch.eye(4, 20, dtype=torch.float64))
    again, _ = leading_vectors(matrix, 4, torch.Generator().manual_seed(1))
    assert torch.equal(found, again)


# Refusals.


def heads():
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3))


REFUSED = {
    "flatten": (
        chain(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3)),
        IMAGE,
        r"'3\.weight' reads units after a flatten",
    ),
    "grouped": (
        chain(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 3, 1)),
        IMAGE,
        r"'\d\.weight' (is a grouped convolution|reads units after a flatten)",
    ),
    "multiplier": (
        chain(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Conv2d(5, 15, 3, groups=5), nn.Conv2d(15, 3, 1)),
        IMAGE,
        r"'3\.weight' reads units after a flatten or several filters per unit",
    ),
    "3-d": (
        chain(nn.Conv3d(2, 5, 3), nn.ReLU(), nn.Conv3d(5, 3, 1)),
        (2, 4, 4, 4),
        r"'0\.weight' is a convolution over three axes",
    ),
    "attention": (heads, (5, 4), r"attention' in '1\.self_attn' multiplies activations"),
    "gates": (
        lambda: Net(
            lambda self, x: self.c(self.a(x) * self.b(x).sigmoid()),
            a=nn.Linear(4, 8),
            b=nn.Linear(4, 8),
            c=nn.Linear(8, 3),
        ),
        (4,),
        r"'aten\.mul' .*multiplies activations",
    ),
    "transposed": (
        chain(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.ConvTranspose2d(5, 3, 3)),
        IMAGE,
        r"'2\.weight' is the weight of something else",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.each(2)
def test_refused_when_the_grower_is_made(name):
    make, shape, says = REFUSED[name]
    plan = planned(lambda: (make(), randn(2, *shape)))
    model = seed_of(plan)
    before = tensors_of(model)
    with pytest.raises(InputError, match=says):
        gr.Grower(model, plan, method="gradmax", batches=batches_of(shape, 3), loss=loss)
    after = tensors_of(model)
    assert all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize("act", [nn.Sigmoid, nn.Softplus])
def test_an_activation_that_is_not_zero_at_zero_is_refused(act):
    make = chain(nn.Linear(4, 6), act(), nn.Linear(6, 3))
    plan, model, batches = prepared(Case(make, (4,), {}))
    before = tensors_of(model)
    with pytest.raises(InputError, match=r"σ\(0\) ≠ 0"):
        grower_of(model, plan, "gradmax", batches=batches, loss=loss)
    after = tensors_of(model)
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_a_plan_that_freezes_what_is_not_understood_grows_the_rest():
    make = chain(
        nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )
    plan = planned(lambda: (make(), randn(2, *IMAGE)), freeze=["2"])
    model = seed_of(plan)
    before = model(plan.example_inputs).detach()
    batches = batches_of(IMAGE, 3)
    grower_of(model, plan, "gradmax", batches=batches, loss=loss).grow()
    assert model[0].out_channels == 5
    assert distance(before, model(plan.example_inputs).detach()) <= 1e-12
    assert math.isfinite(float(loss(model(batches[0][0]), batches[0][1])))


@pytest.mark.slow
def test_a_layer_that_reads_one_channel_is_no_depthwise_filter():
    """It makes units of its own, also where others write the same residual stream."""
    torch.manual_seed(0)
    model = zoo.resnet8(width=8, in_channels=1).double()
    plan = gr.plan(model, torch.zeros(2, 1, 8, 8, dtype=torch.float64), stages=2)
    batch = torch.randn(8, 1, 8, 8, dtype=torch.float64), torch.arange(8) % 10
    seed = plan.build_seed()
    grower = gr.Grower(
        seed, plan, method="gradmax", batches=[batch], loss=F.cross_entropy, noise=0.0
    )
    assert grower.grow().change.relative < 1e-12
