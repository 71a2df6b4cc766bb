"""firefly: branches against really split networks, scores against finite differences, growth that pays."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import growthring as gr
from growthring.methods.base import Job, Step
from growthring.methods.branches import Branches
from growthring.methods.firefly import CandidateUnits, FireFly, FireFlySplit
from growthring.methods.search import DataSearch
from growthring.methods.splitting import Splitting
from growthring.methods.trialcopies import searching_copy
from growthring.methods.units import Units
from tests.growth_contract import Net, distance, randn
from tests.methods.nets import (
    NETS,
    batches_of,
    grower_of,
    mean_loss,
    planned,
    seed_of,
    segments,
    split_by_hand,
    tensors_of,
)

loss = F.cross_entropy


def job_of(plan, model, batches=(), seed=3):
    step = Step(plan, plan.stage_widths[0], plan.stage_widths[1], "off")
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return Job(step, model, tensors, torch.Generator().manual_seed(seed), batches, loss)


def doubled(name_or_make):
    """A plan that doubles every width, and its seed."""
    make = NETS[name_or_make] if isinstance(name_or_make, str) else name_or_make
    full = planned(make)
    plan = planned(make, widths={g.name: [g.width // 2, g.width] for g in full.groups.growable})
    return plan, seed_of(plan).eval()


def even(name):
    """The networks of the table whose widths can all be halved."""
    return {
        "mlp": lambda: (
            nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)),
            randn(6, 5),
        ),
        "conv_flatten": lambda: (
            nn.Sequential(
                nn.Conv2d(3, 6, 3, padding=1, bias=False),
                nn.BatchNorm2d(6),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(54, 8),
                nn.ReLU(),
                nn.Linear(8, 4),
            ),
            randn(4, 3, 6, 6),
        ),
        "joined": lambda: (
            Net(
                lambda self, x: self.c(torch.cat([self.a(x).relu(), x, self.b(x).tanh()], 1)).mean(
                    (2, 3)
                ),
                a=nn.Conv2d(2, 4, 3, padding=1),
                b=nn.Conv2d(2, 6, 1),
                c=nn.Conv2d(12, 3, 3),
            ),
            randn(4, 2, 5, 5),
        ),
        "one_dimension": lambda: (
            nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Conv1d(6, 3, 2)),
            randn(4, 2, 7),
        ),
        "sequence": lambda: (
            nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 3)),
            randn(4, 7, 5),
        ),
    }.get(name) or NETS[name]


SPLIT = [
    "mlp", "conv_flatten", "resnet8", "wrn", "mobilenet", "joined", "one_dimension", "sequence",
    "more_groups", "shared",
]  # fmt: skip


def all_twice(plan):
    sources, offsets = {}, {}
    for g in plan.groups.growable:
        n = plan.stage_widths[0][g.key]
        sources[g.key] = torch.arange(n).repeat(2)
        ones = torch.ones(n, dtype=torch.float64)
        offsets[g.key] = torch.cat([ones, -ones])
    return sources, offsets


def directions_of(job, model, scale, seed=4):
    """Random v for every weight whose rows are units."""
    found = Branches(model, job, Units(job.step.before, job.step.growing), {}).split_weights()
    g = torch.Generator().manual_seed(seed)
    shapes = {n: dict(model.named_parameters())[n].shape for n in found}
    return {n: scale * torch.randn(s, generator=g, dtype=torch.float64) for n, s in shapes.items()}


@pytest.mark.each(8)
@pytest.mark.parametrize("net", SPLIT)
def test_branches_compute_what_the_split_network_does(net):
    plan, model = _shared_plan(net) if net == "shared" else doubled(even(net))
    job, twin = job_of(plan, model), searching_copy(model)
    units = Units(job.step.before, job.step.growing)
    x = plan.example_inputs
    still = Branches(twin, job, units, directions_of(job, twin, 0.0))
    assert distance(model(x).detach(), still.outputs(x).detach()) <= 1e-13
    still.check(x)
    moves = directions_of(job, twin, 0.3)
    written = {
        n for (n, axis), (role, _) in segments(plan).items() if role == "writes" and not axis
    }
    assert set(moves) <= written
    found = Branches(twin, job, units, moves).outputs(x)
    expected = split_by_hand(plan, model, *_with_moves(plan, moves)).eval()(x)
    assert distance(expected.detach(), found.detach()) <= 1e-12
    assert distance(model(x).detach(), found.detach()) > 1e-3


def _with_moves(plan, moves):
    sources, offsets = all_twice(plan)
    return sources, moves, offsets


def _shared_plan(net):
    """A layer that reads what it writes, three times over."""

    def run(self, x):
        h = self.a(x)
        for _ in range(3):
            h = torch.tanh(self.again(h))
        return self.head(h)

    return doubled(
        lambda: (
            Net(run, a=nn.Linear(5, 8), again=nn.Linear(8, 8), head=nn.Linear(8, 3)),
            randn(6, 5),
        )
    )


MIXING = {
    "mean": lambda self, x: self.b(self.a(x).relu() - self.a(x).relu().mean(0, keepdim=True)),
    "batch norm without statistics": lambda self, x: self.b(self.n(self.a(x)).relu()),
    "order": lambda self, x: self.b(self.a(x).relu().cumsum(0)),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("method", [FireFly(steps=2), Splitting(steps=2)], ids=lambda m: m.name)
@pytest.mark.each(4)
def test_a_model_that_mixes_its_examples_is_refused(name, method):
    """Branches run side by side in one batch: they must not see each other."""

    def make():
        norm = nn.BatchNorm1d(8, track_running_stats=False)
        return Net(MIXING[name], a=nn.Linear(5, 8), n=norm, b=nn.Linear(8, 3)), randn(6, 5)

    plan, model = doubled(make)
    before = tensors_of(model)
    grower = grower_of(model, plan, method, batches=batches_of((5,), 3), loss=loss)
    with pytest.raises(gr.GrowthError, match="mixes the examples of a batch"):
        grower.grow()
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def depthwise():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False),
        nn.ReLU(),
        nn.Conv2d(6, 3, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ), randn(4, 2, 5, 5)


@pytest.mark.parametrize(
    "method", [Splitting(steps=2, epsilon=0.1), FireFlySplit(steps=2)], ids=lambda m: m.name
)
def test_depthwise_filters_pass_units_on_and_are_copied_as_they_are(method):
    plan, model = doubled(depthwise)
    old = tensors_of(model)
    grower_of(model, plan, method, batches=batches_of((2, 5, 5), 3), loss=loss).grow()
    new = tensors_of(model)
    same = (new["0.bias"][:, None] == old["0.bias"][None]).double()
    g = same.argmax(1)
    assert bool((same.sum(1) == 1).all())
    half = (new["0.weight"] - old["0.weight"][g]).flatten(1).norm(dim=1)
    assert bool((half > 0).all())
    if method.name == "splitting":
        torch.testing.assert_close(half, torch.full_like(half, 0.1))
    assert torch.equal(new["3.weight"], old["3.weight"][g])


# Scores.


def stream(self, x):
    h = self.n0(self.stem(x)).tanh()
    h = (h + self.n2(self.b(self.a(h).tanh()))).tanh()
    return self.head(h.mean((2, 3)))


def stream_net():
    return Net(
        stream,
        stem=nn.Conv2d(2, 6, 3, padding=1),
        n0=nn.BatchNorm2d(6),
        a=nn.Conv2d(6, 4, 3, padding=1),
        b=nn.Conv2d(4, 6, 1),
        n2=nn.BatchNorm2d(6),
        head=nn.Linear(6, 3),
    ), randn(4, 2, 4, 4)


def two_layers():
    return nn.Sequential(
        nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)
    ), randn(6, 5)


SCORED = {"two layers": (two_layers, (5,)), "stream": (stream_net, (2, 4, 4))}


def mixed(plan, model, group, unit, gate, moves=None, new=None):
    """Tensors of a network with one candidate mixed in at strength `gate`: θ at 1 - gate, θ ± v at gate / 2 each,
    or a new unit with its out-weights times gate."""
    tensors = tensors_of(model)
    for (name, axis), (role, line) in segments(plan).items():
        (held,) = {g for g, _ in line}
        if held != group:
            continue
        t = tensors[name].movedim(axis, 0)
        if new is not None:
            row = new[name].movedim(axis, 0)[unit : unit + 1]
            others = [slice(n) for n in t.shape[1:]]  # candidates do not see each other
            row = row[(slice(None), *others)]
            extra = gate * row if role == "reads" else row
            grown = torch.cat([t, extra])
        elif role == "reads":
            t, one = t.clone(), t[unit : unit + 1]
            grown = torch.cat([t, gate / 2 * one, gate / 2 * one])
            grown[unit] = (1 - gate) * t[unit]
        else:
            one = t[unit : unit + 1]
            v = moves[name].movedim(axis, 0)[unit : unit + 1] if name in moves else 0
            grown = torch.cat([t, one + v, one - v])
        tensors[name] = grown.movedim(0, axis)
    return tensors


@pytest.mark.parametrize("name", SCORED)
def test_scores_are_the_slopes_of_single_candidates(name):
    make, shape = SCORED[name]
    plan, model = doubled(make)
    batches = batches_of(shape, 3, num=1)
    job = job_of(plan, model, batches)
    candidates, search = CandidateUnits(job, FireFly()), DataSearch(job)
    for _ in range(3):
        candidates.descend(search, *batches[0])
    candidates.score(search, *batches[0])
    wide = tensors_of(candidates._twin)
    moves = {}
    for n, v in candidates.directions.items():
        old = tuple(slice(k) for k in model.get_parameter(n).shape)
        moves[n] = v.detach()[old]
    x, y = batches[0]

    def value(**candidate):
        tensors = mixed(plan, model, **candidate)
        return float(loss(functional_call(model, tensors, (x,)), y))

    checked, step = 0, 1e-5
    for g in plan.groups.growable:
        width = plan.stage_widths[0][g.key]
        scores = candidates.units.part(candidates.scores, g.key)
        assert len(scores) == plan.stage_widths[1][g.key]
        for unit, score in enumerate(scores.tolist()):
            options = {"group": g.key, "unit": unit}
            options |= {"moves": moves} if unit < width else {"new": wide}
            slope = (value(gate=step, **options) - value(gate=-step, **options)) / (2 * step)
            assert score == pytest.approx(slope, rel=1e-5, abs=1e-9), (g.name, unit)
            checked += 1
    assert checked == sum(g.width for g in plan.groups.growable)


def test_the_search_by_hand():
    """v, in- and out-weights after some steps, from a search written down for two layers."""

    def make():
        return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), randn(6, 5)

    plan, model = doubled(make)
    batches = batches_of((5,), 3)
    job = job_of(plan, model, batches)
    method = FireFly(penalty=0.3, new_penalty=0.2, rate=2e-3)
    candidates, search = CandidateUnits(job, method), DataSearch(job)
    w1, b1, w2, b2 = (t.detach().clone() for t in model.parameters())
    wide = tensors_of(candidates._twin)
    v = candidates.directions["0.weight"].detach()[:3].clone().requires_grad_()
    into = wide["0.weight"][3:].clone().requires_grad_()
    out = wide["2.weight"][:, 3:].clone().requires_grad_()
    assert float(v.abs().max()) <= 0.1 and float(out.abs().max()) <= 0.01
    assert float(into.abs().max()) > 0.1  # N(0, 0.1²)
    assert torch.equal(wide["0.weight"][:3], w1) and torch.equal(wide["2.weight"][:, :3], w2)
    optimizer = torch.optim.RMSprop([v, into, out], lr=2e-3, alpha=0.9, momentum=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        h = 0.5 * ((x @ (w1 + v).T + b1).tanh() + (x @ (w1 - v).T + b1).tanh())
        outputs = h @ w2.T + (x @ into.T).tanh() @ out.T + b2
        new = into.square().sum() + out.square().sum()
        (loss(outputs, y) + 0.3 * (v.square().sum() + 0.2 * new)).backward()
        optimizer.step()
        candidates.descend(search, x, y)
    wide = tensors_of(candidates._twin)
    close = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(candidates.directions["0.weight"].detach()[:3], v.detach(), **close)
    torch.testing.assert_close(wide["0.weight"][3:], into.detach(), **close)
    torch.testing.assert_close(wide["2.weight"][:, 3:], out.detach(), **close)
    assert torch.equal(wide["0.weight"][:3], w1) and torch.equal(wide["2.weight"][:, :3], w2)
    assert not bool(wide["0.bias"][3:].any())


# What is kept.


def searched(plan, model, batches, method, seed=3):
    """What the library's search finds with the generator that a Grower would have: scores, v, candidates."""
    job = job_of(plan, model, batches, seed)
    candidates, search = CandidateUnits(job, method), DataSearch(job)
    steps = search.over(method.steps, lambda x, y: candidates.descend(search, x, y))
    number = method.score_steps or max(1, steps // 4)
    search.over(number, lambda x, y: candidates.score(search, x, y))
    return candidates


@pytest.mark.parametrize("method", [FireFly(steps=6), FireFlySplit(steps=6)], ids=lambda m: m.name)
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_the_best_candidates_are_in_the_grown_tensors(method, seed):
    plan = planned(two_layers, widths={"0": [4, 6], "2": [2, 4]})
    model, batches = seed_of(plan).eval(), batches_of((5,), 3)
    old = tensors_of(model)
    candidates = searched(plan, copy.deepcopy(model), batches, method, seed)
    generator = torch.Generator().manual_seed(seed)
    options = {"batches": batches, "loss": loss, "generator": generator}
    report = grower_of(model, plan, method, **options).grow()
    assert report.search_flops > 0 and "function changes" in report.notes[0]
    new, wide = tensors_of(model), tensors_of(candidates._twin)
    splits, added = {}, {}
    for layer, n, last in ((0, 4, 6), (2, 2, 4)):
        key = plan.groups[str(layer)].key
        scores = candidates.units.part(candidates.scores, key).tolist()
        if method.name == "firefly-split":
            assert len(scores) == n
        best = sorted(range(len(scores)), key=scores.__getitem__)[: last - n]
        bias = new[f"{layer}.bias"]
        kept = []
        for j in range(n, last):
            same = (bias[j] == old[f"{layer}.bias"]).nonzero().flatten().tolist()
            assert bool(same) or bias[j] == 0
            kept.append(same[0] if same else None)
        assert [k for k in best if k < n] == [k for k in kept if k is not None]
        assert [k is None for k in kept] == [k >= n for k in best]
        splits[layer] = {k: n + i for i, k in enumerate(best) if k < n}
        added[layer] = {k: n + i for i, k in enumerate(best) if k >= n}
    # the first layer reads the input alone
    v = candidates.directions["0.weight"].detach()
    for unit, other in splits[0].items():
        torch.testing.assert_close(new["0.weight"][unit], old["0.weight"][unit] + v[unit])
        torch.testing.assert_close(new["0.weight"][other], old["0.weight"][unit] - v[unit])
    for number, place in added[0].items():
        torch.testing.assert_close(new["0.weight"][place], wide["0.weight"][number])
    # the second one reads halves of split units and the new ones as they were found
    v = candidates.directions["2.weight"].detach()
    for unit in range(2):
        rows = {unit: 0.0} | ({unit: 1.0, splits[2][unit]: -1.0} if unit in splits[2] else {})
        for place, sign in rows.items():
            row = wide["2.weight"][unit] + sign * v[unit]
            for column in range(4):
                divisor = 2 if column in splits[0] else 1
                torch.testing.assert_close(new["2.weight"][place, column], row[column] / divisor)
                if column in splits[0]:
                    half = new["2.weight"][place, splits[0][column]]
                    torch.testing.assert_close(half, row[column] / 2)
            for number, column in added[0].items():
                expected = wide["2.weight"][unit, number]
                torch.testing.assert_close(new["2.weight"][place, column], expected)
                assert expected != 0
    for number, place in added[2].items():
        torch.testing.assert_close(
            new["2.weight"][place, [c for c in range(4) if c not in splits[0]]],
            wide["2.weight"][number, [c for c in range(4) if c not in splits[0]]],
        )
        for column in added[0].values():
            assert new["2.weight"][place, column] == 0, "new units do not read new ones"
        torch.testing.assert_close(new["4.weight"][:, place], wide["4.weight"][:, number])
    for unit, other in splits[2].items():
        for place in (unit, other):
            torch.testing.assert_close(new["4.weight"][:, place], old["4.weight"][:, unit] / 2)
    assert method.name != "firefly-split" or not (added[0] or added[2])


def test_both_kinds_of_candidates_get_chosen():
    """So that the test above sees both."""
    plan = planned(two_layers, widths={"0": [4, 6], "2": [2, 4]})
    kinds = set()
    for seed in (3, 4, 5):
        model, batches = seed_of(plan).eval(), batches_of((5,), 3)
        old = tensors_of(model)
        generator = torch.Generator().manual_seed(seed)
        options = {"batches": batches, "loss": loss, "generator": generator}
        grower_of(model, plan, FireFly(steps=6), **options).grow()
        for layer, n in ((0, 4), (2, 2)):
            fresh = tensors_of(model)[f"{layer}.bias"][n:]
            kinds |= {bool(b in old[f"{layer}.bias"]) for b in fresh}
    assert kinds == {True, False}


def test_firefly_split_by_more_than_there_are_units():
    plan = planned(two_layers, widths={"0": [2, 6], "2": [2, 4]})
    model, batches = seed_of(plan).eval(), batches_of((5,), 3)
    old = tensors_of(model)
    grower_of(model, plan, FireFlySplit(steps=3), batches=batches, loss=loss).grow()
    same = tensors_of(model)["0.bias"][:, None] == old["0.bias"][None]
    assert same.sum(0).tolist() == [3, 3]


# It pays.


def learnable(shape, seed=0):
    """Batches whose labels can be learnt: the sign patterns of two random features."""
    g = torch.Generator().manual_seed(seed)
    found = []
    plane = torch.randn(2, *shape, generator=g, dtype=torch.float64)
    for _ in range(4):
        x = torch.randn(32, *shape, generator=g, dtype=torch.float64)
        features = (x[:, None] * plane).flatten(2).sum(2)
        found.append(
            (x, (features[:, 0] * features[:, 1] > 0).long() + (features[:, 0] > 1).long())
        )
    return found


PAYING = {
    "linear": (lambda: (nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3)), randn(6, 5)), (5,)),
    "stream": (stream_net, (2, 4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("kind", [FireFly, FireFlySplit], ids=lambda kind: kind.name)
@pytest.mark.each(4)
@pytest.mark.parametrize("name", PAYING)
def test_the_loss_falls_and_more_than_with_random_candidates(name, kind):
    make, shape = PAYING[name]
    plan = planned(make, start=0.5)
    batches = learnable(shape)
    after = {"found": [], "random": []}
    stepped = {"found": [], "random": []}
    before = []
    for seed in range(5):
        start = seed_of(plan, seed + 1).eval()
        before.append(mean_loss(start, batches, loss))
        for which, rate in (("found", 3e-3), ("random", 1e-12)):
            model = copy.deepcopy(start)
            method = kind(steps=60, rate=rate)
            generator = torch.Generator().manual_seed(seed)
            options = {"batches": batches, "loss": loss, "generator": generator}
            grower_of(model, plan, method, **options).grow()
            after[which].append(mean_loss(model, batches, loss))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            sum(loss(model(x), y) for x, y in batches).backward()
            optimizer.step()  # one joint step on everything
            stepped[which].append(mean_loss(model, batches, loss))
    assert all(a < b for a, b in zip(after["found"], before, strict=True)), (after, before)
    assert sum(after["found"]) < sum(after["random"]) - 1e-3 * 5, after
    assert sum(stepped["found"]) < sum(stepped["random"]) - 1e-3 * 5, stepped
