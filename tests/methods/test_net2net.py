"""net2net: exact without noise on every kind of network, one map per group, copies that noise parts."""

import copy

import pytest
import torch
from torch import nn

import growthring as gr
from growthring import zoo
from growthring.errors import GrowthError, InputError
from tests.graph.operator_table import ROWS
from tests.growth_contract import Net, distance, make_plan, perturb, randn, run, tokens
from tests.methods.nets import (
    NETS,
    grower_of,
    mlp,
    parents,
    plan_of,
    planned,
    seed_of,
    tensors_of,
    train,
)

TRAINED = ["mlp", "conv_bn", "resnet8", "inception", "layer_norm", "gpt"]


# Exact.


def check_exact(plan, tolerance, between):
    """Grows through all stages; `between` changes the model as training would."""
    model, inputs = seed_of(plan), plan.example_inputs
    grower = grower_of(model, plan, "net2net")
    while not grower.is_full:
        before = {mode: run(model, inputs, mode)[0] for mode in (False, True)}
        report = grower.grow()
        assert report.notes == () or all("fade" in note for note in report.notes)
        for mode, outputs in before.items():
            for a, b in zip(outputs, run(model, inputs, mode)[0], strict=True):
                assert distance(a, b) <= tolerance, (grower.stage, mode)
        between(model, grower)


@pytest.mark.each(21)
@pytest.mark.parametrize("net", NETS)
def test_exact_in_double_precision(net):
    check_exact(plan_of(net), 1e-12, lambda model, grower: perturb(model, seed=10 + grower.stage))


@pytest.mark.slow  # the same rules as in double precision, with room for rounding
@pytest.mark.parametrize("net", NETS)
def test_exact_in_single_precision(net):
    check_exact(
        plan_of(net, torch.float32), 1e-5, lambda model, grower: perturb(model, 10 + grower.stage)
    )


@pytest.mark.parametrize("net", TRAINED)
@pytest.mark.each(10)
def test_exact_after_training_steps(net):
    plan = plan_of(net)

    def between(model, grower):
        grower.advance(1.0)  # norms take in the new units
        train(model, plan, torch.optim.SGD(model.parameters(), lr=0.01), seed=grower.stage)

    check_exact(plan, 1e-11, between)


@pytest.mark.parametrize("net", TRAINED)
@pytest.mark.each(6)
def test_exact_while_norms_still_fade(net):
    plan = plan_of(net)

    def between(model, grower):
        grower.advance(0.4)
        train(model, plan, torch.optim.SGD(model.parameters(), lr=0.01), seed=grower.stage)

    check_exact(plan, 1e-11, between)


# Of a norm over a weight, a distance to a code or a product over units, two copies are not half as much each.
NOT_COPIED = ("weight_standardised", "codebook_distances", "in_place_product_of_scaled_gates")


@pytest.mark.slow
@pytest.mark.parametrize("row", [r for r in ROWS if r.name in NOT_COPIED], ids=lambda row: row.name)
def test_what_copies_would_change_is_refused(row):
    torch.manual_seed(0)
    plan = make_plan(*row.make(), stages=2, **row.options)
    with pytest.raises(GrowthError, match=r"a trial growth .* changes the outputs"):
        grower_of(seed_of(plan), plan, "net2net")


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [r for r in ROWS if r.grows and "tied" not in r.name and r.name not in NOT_COPIED],
    ids=lambda row: row.name,
)
def test_exact_for_every_operator(row):
    torch.manual_seed(0)
    plan = make_plan(*row.make(), stages=2, **row.options)
    model, inputs = seed_of(plan), plan.example_inputs
    grower = grower_of(model, plan, "net2net")
    before = {t: run(model, inputs, t)[0] for t in {False, row.training}}
    grower.grow()
    for mode, outputs in before.items():
        for a, b in zip(outputs, run(model, inputs, mode)[0], strict=True):
            assert distance(a, b) <= 1e-12


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.grows and "tied" in r.name], ids=lambda row: row.name
)
def test_tied_weights_of_the_operator_table_are_refused(row):
    torch.manual_seed(0)
    plan = make_plan(*row.make(), stages=2, **row.options)
    with pytest.raises(InputError, match="is tied"):
        grower_of(seed_of(plan), plan, "net2net")


@pytest.mark.parametrize("heads", ["size", "count"])
@pytest.mark.each(2)
def test_exact_where_heads_grow(heads):
    """Wider heads: q·k is a sum over copies, so keys are divided. More heads: only readers are."""
    plan = planned(NETS["multihead"], heads=heads)
    model, inputs = seed_of(plan), plan.example_inputs
    before, width = model(inputs).detach(), model.attention.head_dim
    grower_of(model, plan, "net2net").grow()
    assert distance(before, model(inputs).detach()) <= 1e-12
    assert (model.attention.head_dim > width) == (heads == "size")


@pytest.mark.parametrize("widths", [(2, 13), (3, 7), (1, 9), (4, 5), (5, 5)])
def test_copies_of_copies_and_odd_widths(widths):
    """Growth by one unit, by more than a factor of 2 (6.5, 9), and not at all."""
    first, last = widths
    chosen = {"0": [first, last], "2": [3, 11]}
    plan = planned(lambda: mlp((last, 11)), widths=chosen)
    model = seed_of(plan)
    old, before = tensors_of(model), model(plan.example_inputs).detach()
    grower_of(model, plan, "net2net").grow()
    assert distance(before, model(plan.example_inputs).detach()) <= 1e-12
    for rows in (model[0].weight, model[2].weight):
        assert len(rows) in (last, 11)
    g = parents(old["0.weight"], model[0].weight)
    assert g[:first].tolist() == list(range(first))
    assert len(g) == last


# The formula.


def grown_mlp(noise=0.0, seed=3, widths=(9, 7)):
    plan = planned(lambda: mlp(widths))
    model = seed_of(plan)
    old = tensors_of(model)
    generator = torch.Generator().manual_seed(seed)
    grower_of(model, plan, "net2net", noise=noise, generator=generator).grow()
    return old, model


def test_the_formula_by_hand():
    old, model = grown_mlp()
    new = tensors_of(model)
    g, h = (
        parents(old["0.weight"], new["0.weight"]),
        parents(old["2.bias"][:, None], new["2.bias"][:, None]),
    )
    assert g[:2].tolist() == [0, 1] and h[:2].tolist() == [0, 1]
    c, d = torch.bincount(g)[g], torch.bincount(h)[h]
    assert max(c) > 1
    assert torch.equal(new["0.bias"], old["0.bias"][g])
    expected = old["2.weight"][h][:, g] / c
    torch.testing.assert_close(new["2.weight"], expected, rtol=1e-15, atol=0)
    torch.testing.assert_close(new["4.weight"], old["4.weight"][:, h] / d, rtol=1e-15, atol=0)
    assert torch.equal(new["4.bias"], old["4.bias"])


def test_the_copied_units_are_drawn_uniformly():
    plan = planned(lambda: (nn.Sequential(nn.Linear(3, 1204), nn.Linear(1204, 2)), randn(2, 3)),
                   widths={"0": [4, 1204]})  # fmt: skip
    model = seed_of(plan)
    old = tensors_of(model)
    grower_of(model, plan, "net2net").grow()
    counts = torch.bincount(parents(old["0.weight"], model[0].weight)[4:], minlength=4)
    assert counts.sum() == 1200
    assert bool((counts > 240).all()) and bool((counts < 360).all()), counts  # 300 ± 4 deviations


def test_another_seed_draws_another_map():
    maps = []
    for seed in (3, 4):
        old, model = grown_mlp(seed=seed, widths=(40, 7))
        maps.append(parents(old["0.weight"], model[0].weight))
    assert not torch.equal(*maps)


def test_batch_norms_are_indexed_by_the_map():
    plan = plan_of("conv_bn")
    model = seed_of(plan)
    old = tensors_of(model)
    grower_of(model, plan, "net2net").grow()
    new = tensors_of(model)
    g = parents(old["0.weight"], new["0.weight"])
    for name in ("1.weight", "1.bias", "1.running_mean", "1.running_var"):
        assert torch.equal(new[name], old[name][g]), name
    # the second one has no gain or bias, and its convolution reads copies
    h = parents(old["3.bias"][:, None], new["3.bias"][:, None])
    for name in ("4.running_mean", "4.running_var"):
        assert torch.equal(new[name], old[name][h]), name
    assert torch.equal(new["1.num_batches_tracked"], old["1.num_batches_tracked"])


def test_one_map_for_everything_that_writes_a_residual_stream():
    plan = plan_of("resnet8")
    model = seed_of(plan)
    old = tensors_of(model)
    grower_of(model, plan, "net2net").grow()
    new = tensors_of(model)
    g = parents(old["conv1.weight"], new["conv1.weight"])
    c = torch.bincount(g)[g][None, :, None, None]
    for norm in ("bn1", "stages.0.0.bn2"):
        for part in ("weight", "bias", "running_mean", "running_var"):
            name = f"{norm}.{part}"
            assert torch.equal(new[name], old[name][g]), name
    inner = parents(old["stages.0.0.bn1.bias"][:, None], new["stages.0.0.bn1.bias"][:, None])
    d = torch.bincount(inner)[inner][None, :, None, None]
    for name, expected in (
        ("stages.0.0.conv2.weight", old["stages.0.0.conv2.weight"][g][:, inner] / d),
        ("stages.0.0.conv1.weight", old["stages.0.0.conv1.weight"][inner][:, g] / c),
    ):
        torch.testing.assert_close(new[name], expected, rtol=1e-15, atol=0)
    shortcut = next(n for n in new if n.startswith("stages.1.0.shortcut") and new[n].dim() == 4)
    rows = new[shortcut][: len(old[shortcut])]
    torch.testing.assert_close(rows, old[shortcut][:, g] / c, rtol=1e-15, atol=0)


def test_a_flattened_channel_is_copied_as_a_block():
    plan = plan_of("conv_flatten")
    model = seed_of(plan)
    old = tensors_of(model)
    grower_of(model, plan, "net2net").grow()
    new = tensors_of(model)
    g = parents(old["0.weight"], new["0.weight"])
    c, n, m = torch.bincount(g)[g], len(old["0.weight"]), len(g)
    blocks = old["4.weight"].reshape(-1, n, 9)[:, g] / c[None, :, None]
    found = new["4.weight"].reshape(-1, m, 9)[: len(old["4.weight"])]
    torch.testing.assert_close(found, blocks, rtol=1e-15, atol=0)


# Gradients and optimizer state follow the function, not the weights alone.


@pytest.mark.parametrize("net", ["mlp", "conv_bn", "resnet8"])
def test_gradients_in_mid_accumulation(net):
    """What backward() left before the growth is what it would leave after it, on the old entries."""
    plan = plan_of(net)
    model, x = seed_of(plan).eval(), plan.example_inputs
    model(x).square().sum().backward()
    twin = copy.deepcopy(model)
    grower_of(model, plan, "net2net").grow()
    kept = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    model(x).square().sum().backward()
    for name, p in model.named_parameters():
        old = tuple(slice(n) for n in twin.get_parameter(name).shape)  # old units come first here
        torch.testing.assert_close(kept[name][old], p.grad[old], rtol=1e-9, atol=1e-12, msg=name)


def test_momentum_that_is_rescaled_follows_the_gradients():
    """state_at_growth="rescale": what is kept is what steps at the new size would have left."""
    plan = plan_of("mlp")
    model, x = seed_of(plan), plan.example_inputs
    options = {"lr": 0.0, "momentum": 0.9, "state_at_growth": "rescale"}
    optimizer = gr.optim.SGD(model.parameters(), **options)

    def steps(optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()

    steps(optimizer)
    shapes = {n: p.shape for n, p in model.named_parameters()}
    grower_of(model, plan, "net2net", optimizer=optimizer).grow()
    fresh = gr.optim.SGD(model.parameters(), **options)
    steps(fresh)
    for name, p in model.named_parameters():
        old = tuple(slice(n) for n in shapes[name])
        kept, expected = (o.state[p]["momentum_buffer"][old] for o in (optimizer, fresh))
        torch.testing.assert_close(kept, expected, rtol=1e-9, atol=1e-12, msg=name)


# Noise.


def test_noise_parts_the_copies_from_their_originals_alone():
    old, exact = grown_mlp()
    _, noisy = grown_mlp(noise=1e-3)
    a, b = tensors_of(exact), tensors_of(noisy)
    for name in ("0.weight", "2.weight"):
        moved = b[name] - a[name]
        n = len(old[name])
        assert torch.equal(b[name][:n], a[name][:n]), "old units stay"
        assert bool((moved[n:] != 0).all()), "every new one moves"
        share = float(moved[n:].std() / a[name].std())
        assert 0.6e-3 < share < 1.5e-3, share
    for name in ("0.bias", "2.bias", "4.weight", "4.bias"):
        assert torch.equal(a[name], b[name]), name


def test_copies_of_one_unit_differ_from_each_other():
    _, noisy = grown_mlp(noise=1e-3)
    rows = noisy[0].weight.detach()
    assert float((torch.cdist(rows, rows) + torch.eye(len(rows))).min()) > 0


def test_without_noise_copies_never_part_and_with_it_they_do():
    plan = planned(lambda: mlp((9, 7)))
    apart = {}
    for noise in (0.0, 1e-3):
        model = seed_of(plan)
        old = tensors_of(model)
        grower = grower_of(model, plan, "net2net", noise=0.0)
        grower.grow()
        g = parents(old["0.weight"], model[0].weight)
        again = seed_of(plan)
        grower_of(again, plan, "net2net", noise=noise).grow()
        train(again, plan, torch.optim.SGD(again.parameters(), lr=0.05), steps=20)
        rows = again[0].weight.detach()
        apart[noise] = float((rows[2:] - rows[g[2:]]).abs().max())
    assert apart[0.0] < 1e-12, apart
    assert apart[1e-3] > 1e-4, apart


def test_the_function_changes_by_about_the_noise():
    plan = plan_of("resnet8")
    changes = []
    for noise in (1e-4, 1e-2):
        model = seed_of(plan)
        report = grower_of(model, plan, "net2net", noise=noise).grow()
        assert report.change.relative <= 1e-12
        changes.append(report.change_with_noise.relative)
    assert 0 < changes[0] < 1e-3 < changes[1] * 10 and changes[1] < 1


# Refusals.


def test_tied_tensors_are_refused_with_the_reason():
    plan = planned(lambda: (zoo.GPT(11, 7, 1, 2, 8), tokens(3, 6)))
    model = seed_of(plan)
    before = tensors_of(model)
    says = r"'net2net'.*'token_embedding\.weight' is tied.*divided where it is read.*'paired'"
    with pytest.raises(InputError, match=says):
        gr.Grower(model, plan, method="net2net")
    after = tensors_of(model)
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_a_tied_tensor_that_does_not_grow_is_no_obstacle():
    def net():
        emb = nn.Embedding(7, 6)
        return Net(
            lambda self, x: self.b(self.a(self.e(x)).relu()) @ self.e.weight.T,
            e=emb, a=nn.Linear(6, 12), b=nn.Linear(12, 6),
        ), tokens(2, 5, high=7)  # fmt: skip

    plan = planned(net, freeze=["e"])
    model = seed_of(plan)
    before = model(plan.example_inputs).detach()
    grower_of(model, plan, "net2net").grow()
    assert distance(before, model(plan.example_inputs).detach()) <= 1e-12
