"""splitting: S·v against explicit splitting matrices, eigenpairs against eigh, splits against their promise."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from growthring.methods.base import Job, Step
from growthring.methods.search import DataSearch
from growthring.methods.splitting import Directions, Splitting
from tests.growth_contract import Net, distance, randn
from tests.methods.nets import (
    batches_of,
    grower_of,
    mean_loss,
    planned,
    seed_of,
    split_by_hand,
    tensors_of,
)

loss = F.cross_entropy


def searching(plan, model, batches, method=None, criterion=loss):
    """The library's directions and search."""
    step = Step(plan, plan.stage_widths[0], plan.stage_widths[1], "off")
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    job = Job(step, model, tensors, torch.Generator().manual_seed(0), batches, criterion)
    return Directions(job, method or Splitting()), DataSearch(job)


# Explicit splitting matrices.


def second_of(kind, z, beta):
    """σ'' of an activation; of a ReLU what stands in for it."""
    if kind is nn.Tanh:
        return -2 * z.tanh() * (1 - z.tanh().square())
    s = torch.sigmoid(beta * z)
    if kind is nn.LeakyReLU:
        return 0.99 * beta * s * (1 - s)
    if kind is nn.ReLU6:
        high = torch.sigmoid(beta * (z - 6))
        return beta * s * (1 - s) - beta * high * (1 - high)
    return beta * s * (1 - s)


def explicit(model, layer, act, x, y, beta=3.0):
    """S of every unit of `model[layer]`, whose activation is `model[act]`: (units, D, D).

    x: places × D, c·x with the norm's c; E over a batch is the loss' own mean.
    """
    model = copy.deepcopy(model).eval()
    kept = {}
    with torch.enable_grad():
        h = x
        for i, module in enumerate(model):
            if i == layer:
                kept["x"] = h.detach()
            if i == act:
                kept["z"] = h.detach()
            h = module(h)
            if i == act:
                h = kept["h"] = h.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(h.flatten(1), y), kept["h"])
    weighted = gradient * second_of(type(model[act]), kept["z"], beta)
    weight = model[layer].weight
    if weight.dim() == 4:
        conv = model[layer]
        patches = F.unfold(
            kept["x"], conv.kernel_size, conv.dilation, conv.padding, conv.stride
        ).movedim(1, 2)  # (b, places, D)
        found = torch.einsum("bip,bpd,bpe->ide", weighted.flatten(2), patches, patches)
    else:
        found = torch.einsum("bi,bd,be->ide", weighted, kept["x"], kept["x"])
    norm = model[layer + 1]
    if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)):
        c = norm.weight / (norm.running_var + norm.eps).sqrt()
        found = found * c.detach().square()[:, None, None]
    return found


def linear(act):
    return nn.Sequential(nn.Linear(5, 8), act(), nn.Linear(8, 7), act(), nn.Linear(7, 3))


def convs():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 2, stride=2, dilation=1),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 3, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


MATRICES = {
    "tanh": (lambda: linear(nn.Tanh), (5,), [(0, 1), (2, 3)]),
    "relu": (lambda: linear(nn.ReLU), (5,), [(0, 1), (2, 3)]),
    "relu6": (lambda: linear(nn.ReLU6), (5,), [(0, 1), (2, 3)]),
    "leaky relu": (lambda: linear(nn.LeakyReLU), (5,), [(0, 1), (2, 3)]),
    "convolutions": (convs, (2, 6, 6), [(0, 2), (3, 5)]),
}


@pytest.mark.parametrize("name", MATRICES)
def test_products_are_those_of_the_explicit_matrices(name):
    make, shape, layers = MATRICES[name]
    plan = planned(lambda: (make(), randn(4, *shape)))
    model, batches = seed_of(plan), batches_of(shape, 3)
    beta = 2.0
    found, search = searching(plan, model, batches, Splitting(beta=beta))
    for x, y in batches[:2]:
        products = found.products(search, x, y)
        for layer, act in layers:
            matrix = explicit(model, layer, act, x, y, beta)
            weight = f"{layer}.weight"
            v = found.directions[weight].flatten(1)
            expected = torch.einsum("ide,ie->id", matrix, v)
            assert float(expected.abs().max()) > 1e-6
            torch.testing.assert_close(products[weight].flatten(1), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.each(2)
@pytest.mark.parametrize("name", ["tanh", "convolutions"])
@pytest.mark.slow
def test_directions_and_values_converge_to_the_smallest_eigenpairs(name):
    make, shape, layers = MATRICES[name]
    plan = planned(lambda: (make(), randn(4, *shape)))
    model, batches = seed_of(plan), batches_of(shape, 3, num=1)
    found, search = searching(plan, model, batches)
    x, y = batches[0]
    for rate in (3e-3, 1e-3, 1e-4):
        for group in found._optimizer.param_groups:
            group["lr"] = rate
        for _ in range(250):
            found.descend(search, x, y)
    found.score(search, x, y)
    values, directions = found.eigenpairs()
    start = 0
    for layer, act in layers:
        lowest, vectors = torch.linalg.eigh(explicit(model, layer, act, x, y))
        n = len(lowest)
        reached = values[start : start + n]
        start += n
        gap = (lowest[:, 1] - lowest[:, 0]) / (lowest[:, -1] - lowest[:, 0])
        spread = lowest[:, -1] - lowest[:, 0]
        assert bool((reached >= lowest[:, 0] - 1e-12).all()), "no vector is below the smallest"
        assert bool(((reached - lowest[:, 0]) / spread < 1e-2).all()), (reached, lowest[:, 0])
        v = directions[f"{layer}.weight"].flatten(1)
        torch.testing.assert_close(v.norm(dim=1), torch.ones(n, dtype=torch.float64))
        cosine = (v * vectors[:, :, 0]).sum(1).abs()
        assert bool((cosine[gap > 0.05] > 0.95).all()), (cosine, gap)
        assert bool((gap > 0.05).any())


# Units that several layers write.


def branches(self, x):
    h = self.n0(self.stem(x)).tanh()
    h = (h + self.n2(self.b(self.a(h).tanh()))).tanh()
    return self.head(h.mean((2, 3)))


def stream():
    return Net(
        branches,
        stem=nn.Conv2d(2, 4, 3, padding=1),
        n0=nn.BatchNorm2d(4),
        a=nn.Conv2d(4, 6, 3, padding=1),
        b=nn.Conv2d(6, 4, 1),
        n2=nn.BatchNorm2d(4),
        head=nn.Linear(4, 3),
    )


def test_a_unit_of_a_stream_against_second_differences_of_the_split_network():
    shape = (2, 4, 4)
    plan = planned(lambda: (stream(), randn(4, *shape)), widths={"stem": [2, 4], "a": [3, 6]})
    model, batches = seed_of(plan).eval(), batches_of(shape, 3, num=1)
    found, search = searching(plan, model, batches)
    products = found.products(search, *batches[0])
    keys = {g.name: g.key for g in plan.groups.growable}
    base, step = mean_loss(model, batches, loss), 1e-3
    for group, width, writers in (("stem", 2, ["stem.weight", "b.weight"]), ("a", 3, ["a.weight"])):
        for unit in range(width):
            form = sum(float((found.directions[w] * products[w])[unit].sum()) for w in writers)
            sources, offsets = {}, {}
            for name, n in (("stem", 2), ("a", 3)):  # everything is doubled, one unit moves
                sources[keys[name]] = torch.cat([torch.arange(n), torch.arange(n)])
                line = torch.zeros(2 * n, dtype=torch.float64)
                if name == group:
                    line[unit], line[n + unit] = step, -step
                offsets[keys[name]] = line
            moved = split_by_hand(plan, model, sources, dict(found.directions), offsets)
            difference = (mean_loss(moved, batches, loss) - base) * 2 / step**2
            assert difference == pytest.approx(form, rel=1e-4, abs=1e-8), (group, unit)


# What is split, and how.


def grown(plan, model, batches, **options):
    method = Splitting(**{"steps": 100} | options)
    report = grower_of(model, plan, method, batches=batches, loss=loss).grow()
    return report


def split_units(old, new, epsilon):
    """(unit, place of its other half) for every new row: the row that it is nearest to, ε times at most away."""
    n = len(old)
    near = torch.cdist(new[n:].flatten(1), old.flatten(1))
    assert bool((near.min(1).values <= epsilon * (1 + 1e-9)).all())
    return [(int(i), n + k) for k, i in enumerate(near.argmin(1))]


@pytest.mark.parametrize("epsilon", [0.01, 0.1])
def test_halves_readers_and_norms(epsilon):
    make, shape, _ = MATRICES["convolutions"]
    widths = {"0": [4, 6], "3": [3, 5]}
    plan = planned(lambda: (make(), randn(4, *shape)), widths=widths)
    model, batches = seed_of(plan), batches_of(shape, 3)
    old = tensors_of(model)
    report = grown(plan, model, batches, epsilon=epsilon, steps=10)
    new = tensors_of(model)
    assert any(f"±{epsilon:g} apart" in note and "second order" in note for note in report.notes)
    first = split_units(old["0.weight"], new["0.weight"], epsilon)
    assert len({unit for unit, _ in first}) == 2
    for unit, other in first:
        a, b = new["0.weight"][unit], new["0.weight"][other]
        torch.testing.assert_close((a + b) / 2, old["0.weight"][unit], rtol=1e-13, atol=1e-15)
        assert float((a - b).norm()) == pytest.approx(2 * epsilon, rel=1e-9)
        for part in ("weight", "bias", "running_mean", "running_var"):
            line, before = new[f"1.{part}"], old[f"1.{part}"]
            assert line[unit] == line[other] == before[unit]
    split = [unit for unit, _ in first]
    whole = [i for i in range(4) if i not in split]
    assert torch.equal(new["0.weight"][whole], old["0.weight"][whole])
    # the reader, itself split: its rows are halves too, so look at what it has in the middle
    second = split_units(old["3.bias"][:, None], new["3.bias"][:, None], 0.0)
    rows = new["3.weight"].clone()
    for unit, other in second:
        rows[unit] = (rows[unit] + rows[other]) / 2
    expected = old["3.weight"].clone()
    expected[:, split] /= 2
    torch.testing.assert_close(rows[:3, :4], expected, rtol=1e-12, atol=1e-14)
    for unit, other in first:
        torch.testing.assert_close(rows[:3, other], expected[:, unit], rtol=1e-12, atol=1e-14)


def test_the_units_with_the_smallest_eigenvalues_are_split():
    make, shape, _ = MATRICES["tanh"]
    plan = planned(lambda: (make(), randn(4, *shape)), widths={"0": [6, 8], "2": [5, 7]})
    model, batches = seed_of(plan), batches_of(shape, 3, num=2, size=16)
    old = tensors_of(model)
    lowest = {}
    for layer, act in ((0, 1), (2, 3)):
        matrix = sum(explicit(model, layer, act, x, y) for x, y in batches) / len(batches)
        lowest[layer] = torch.linalg.eigvalsh(matrix)[:, 0]
    grown(plan, model, batches, steps=400, rate=3e-3, score_steps=2, epsilon=1e-3)
    for layer, values in lowest.items():
        rows = old[f"{layer}.bias"][:, None], tensors_of(model)[f"{layer}.bias"][:, None]
        found = sorted(unit for unit, _ in split_units(*rows, 0.0))
        assert found == sorted(values.argsort()[:2].tolist()), (layer, values)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
@pytest.mark.each(2)
def test_the_loss_changes_as_predicted(epsilon):
    """Of all splits together: the sum of ½ ε² vᵀSv, with v as they are found in the grown weights."""
    make, shape, _ = MATRICES["tanh"]
    plan = planned(lambda: (make(), randn(4, *shape)), widths={"0": [6, 8], "2": [5, 7]})
    model, batches = seed_of(plan).eval(), batches_of(shape, 3, num=2, size=16)
    before, old = mean_loss(model, batches, loss), tensors_of(model)
    matrices = {
        layer: sum(explicit(model, layer, act, x, y) for x, y in batches) / len(batches)
        for layer, act in ((0, 1), (2, 3))
    }
    grown(plan, model, batches, epsilon=epsilon, steps=200, rate=3e-3)
    new = tensors_of(model)
    predicted = 0.0
    first = split_units(old["0.bias"][:, None], new["0.bias"][:, None], 0.0)
    for layer in (0, 2):
        name = f"{layer}.bias"
        for unit, other in split_units(old[name][:, None], new[name][:, None], 0.0):
            half = (new[f"{layer}.weight"][unit] - new[f"{layer}.weight"][other]) / 2
            if layer == 2:  # the columns of split units hold half of it each
                half = half.clone()
                for a, b in first:
                    half[a] = half[a] + half[b]
                half = half[:6]
            assert float(half.norm()) == pytest.approx(epsilon, rel=1e-9)
            predicted += 0.5 * float(half @ matrices[layer][unit] @ half)
    change = mean_loss(model, batches, loss) - before
    assert predicted < 0, "splits that gain were there to be found"
    assert change == pytest.approx(predicted, rel=0.02)


def test_the_outputs_change_in_second_order():
    make, shape, _ = MATRICES["tanh"]
    plan = planned(lambda: (make(), randn(4, *shape)))
    changes = []
    for epsilon in (1e-2, 1e-3):
        model = seed_of(plan)
        report = grown(plan, model, batches_of(shape, 3), epsilon=epsilon, steps=5)
        changes.append(report.change.relative)
    assert 80 < changes[0] / changes[1] < 125, changes


@pytest.mark.parametrize("last", [5, 9, 11])
def test_growth_by_more_than_there_are_units_splits_all_of_them_again(last):
    """From 3 to 5, 9 and 11: the best come first in every round, copies lie evenly from +ε to -ε."""
    make, shape = lambda: nn.Sequential(nn.Linear(5, last), nn.Tanh(), nn.Linear(last, 3)), (5,)
    plan = planned(lambda: (make(), randn(4, *shape)), widths={"0": [3, last]})
    model, batches, epsilon = seed_of(plan).eval(), batches_of(shape, 3), 1e-2
    before, old = model(batches[0][0]).detach(), tensors_of(model)
    grown(plan, model, batches, epsilon=epsilon, steps=20)
    new = tensors_of(model)
    same = new["0.bias"][:, None] == old["0.bias"][None]
    parents = same.double().argmax(1)
    counts = torch.bincount(parents)
    assert bool(same.any(1).all()) and sorted(counts.tolist()) == sorted(
        [last // 3 + (1 if i < last % 3 else 0) for i in range(3)]
    )
    for unit, count in enumerate(counts.tolist()):
        mine = parents == unit
        rows = new["0.weight"][mine] - old["0.weight"][unit]
        torch.testing.assert_close(rows.sum(0), torch.zeros(5, dtype=torch.float64))
        far = rows.norm(dim=1)
        if count == 1:
            assert not bool(far.any())
            continue
        evenly = torch.linspace(epsilon, -epsilon, count, dtype=torch.float64).abs()
        torch.testing.assert_close(far.sort().values, evenly.sort().values)
        readers = new["2.weight"][:, mine]
        torch.testing.assert_close(
            readers, (old["2.weight"][:, unit] / count)[:, None].expand(3, count)
        )
    assert distance(before, model(batches[0][0]).detach()) < 1e-3


def test_noise_adds_nothing_to_units_that_have_parted():
    make, shape, _ = MATRICES["tanh"]
    plan = planned(lambda: (make(), randn(4, *shape)))
    found = []
    for noise in (0.0, 1e-2):
        model = seed_of(plan)
        method = Splitting(steps=3)
        batches = batches_of(shape, 3)
        grower_of(model, plan, method, noise=noise, batches=batches, loss=loss).grow()
        found.append(tensors_of(model))
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


@pytest.mark.parametrize(
    ("options", "examples"),
    [({}, 4 * 8 + 8), ({"steps": 6}, 6 * 8 + 8), ({"steps": 2, "score_steps": 3}, 5 * 8)],
)
def test_what_the_search_goes_over(options, examples):
    """One pass over four batches of 8 and a quarter of it, or as many batches as asked for."""
    make, shape, _ = MATRICES["tanh"]
    plan = planned(lambda: (make(), randn(4, *shape)))
    model, batches = seed_of(plan), batches_of(shape, 3)
    method = Splitting(**options)
    report = grower_of(model, plan, method, batches=batches, loss=loss).grow()
    assert report.search_examples == examples
    assert report.search_flops > 0
