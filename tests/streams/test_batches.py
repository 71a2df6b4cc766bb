"""StageBatches: the batches of the stage that a run is in, in a loop of one's own."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import growthring as gr
from growthring.errors import InputError
from growthring.streams import ProgressiveClasses, ProgressiveData, ProgressiveSets, StageBatches
from tests.messages.test_messages import says

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(X, torch.arange(40) % 4)
STREAM = ProgressiveClasses(DATA, first=2, step=1, order=[0, 1, 2, 3])  # 20, 30, 40 examples


def started(osgd=False, data=STREAM, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
    plan = gr.plan(net, X[:2], epochs=9, stage_examples=data.sizes, batch_size=8)
    model = plan.build_seed()
    optimizer = gr.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    loss = nn.functional.cross_entropy
    kept = gr.DynamicOSGD(model, optimizer, loss, data) if osgd else None
    grower = gr.Grower(model, plan, optimizer, generator=generator, osgd=kept)
    return model, optimizer, grower, StageBatches(data, grower=grower, **options)


def train(model, optimizer, grower, batches, steps=None):
    """The loop of the documentation; returns the sets of labels over steps."""
    seen = []
    for inputs, targets in batches:
        seen.append((grower.stage, len(targets), set(targets.tolist())))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        grower.step()
        if steps is not None and len(seen) == steps:
            break
    return seen


def test_one_loop_for_all_stages():
    model, optimizer, grower, batches = started(osgd=True)
    assert grower.plan.data_shares == (0.5, 0.75, 1.0)
    epochs = grower.plan.epochs
    assert grower.plan.stage_steps == tuple(
        n * -(-size // 8) for n, size in zip(epochs, STREAM.sizes, strict=True)
    )
    seen = train(model, optimizer, grower, batches)
    assert grower.is_complete and len(seen) == grower.plan.total_steps
    for stage in range(3):
        steps = [(n, labels) for t, n, labels in seen if t == stage]
        assert sum(n for n, _ in steps) == epochs[stage] * STREAM.sizes[stage], "whole epochs"
        assert set().union(*(labels for _, labels in steps)) == set(STREAM.seen(stage))


@pytest.mark.parametrize("at", [0, 2, 4, 9])
def test_resumed_anywhere_bit_for_bit(at):
    whole = started(osgd=True)
    train(*whole)
    first = started(osgd=True)
    if at:
        train(*first, steps=at)
    model, optimizer, grower, batches = first
    state = copy.deepcopy(
        (model.state_dict(), optimizer.state_dict(), grower.state_dict(), batches.state_dict())
    )
    random = torch.get_rng_state()
    model, optimizer, grower, batches = started(osgd=True)
    grower.load_state_dict(state[2])
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    batches.load_state_dict(state[3])
    torch.set_rng_state(random)
    train(model, optimizer, grower, batches)
    for (name, a), b in zip(
        whole[0].state_dict().items(), model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name


def test_without_a_grower_a_loop_is_an_epoch():
    batches = StageBatches(STREAM, 8)
    assert len(batches) == 3 and batches.num_examples == 20
    assert [len(y) for _, y in batches] == [8, 8, 4]
    batches.enter(2)
    assert len(batches) == 5 and sum(len(y) for _, y in batches) == 40
    batches.enter(7)  # the plan may have more stages than the data
    assert batches.num_examples == 40


def test_the_order_follows_from_the_seed():
    orders = [[y.tolist() for _, y in StageBatches(STREAM, 8, seed=s)] for s in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_loaders_of_ones_own():
    sets = ProgressiveSets([DataLoader(DATA, 10), DataLoader(DATA, 20)])
    model, optimizer, grower, batches = started(data=sets)
    assert {n for _, n, _ in train(model, optimizer, grower, batches)} == {10, 20}


def test_bad_arguments():
    *_, grower, batches = started()
    says(lambda: StageBatches(DATA), "TensorDataset", "ProgressiveClasses", error=InputError)
    many = ProgressiveData(DATA, (0.2, 0.4, 0.6, 1.0))
    says(
        lambda: StageBatches(many, grower=grower),
        *("grows in 4 stages, the plan has 3", "stages=4"),
        error=InputError,
    )
    osgd = gr.DynamicOSGD(grower.model, None, nn.functional.cross_entropy, many)
    says(
        lambda: gr.Grower(grower.model, grower.plan, osgd=osgd),
        "grows in 4 stages, the plan has 3",
        error=InputError,
    )
    says(osgd.remember, "a Grower says the stage", error=InputError)
    plan = gr.plan(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), X, stages=3)
    endless = gr.Grower(plan.build_seed(), plan)
    says(lambda: StageBatches(STREAM, grower=endless), "total_steps=N", error=InputError)
    says(lambda: batches.enter(-1), "stage=-1", error=InputError)
    says(lambda: batches.load_state_dict({}), "'stage' and 'stream'", error=InputError)


def test_a_loop_that_does_not_step_the_grower():
    *_, batches = started()

    def loop():
        for _ in batches:
            pass

    says(loop, "without a Grower.step()", error=InputError)


def test_plans_of_growing_data():
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    options = {"epochs": 12, "preset": "paper", "stages": 3}
    plain = gr.plan(net, X, **options)
    grown = gr.plan(net, X, **options, stage_examples=(0.25, 1.0))
    assert grown.data_shares == (0.25, 1.0, 1.0) and not grown.stage_steps
    flops = [f.flops for f in grown.footprints]
    spent = sum(n * s * f for n, s, f in zip(grown.epochs, grown.data_shares, flops, strict=True))
    whole = sum(n * s for n, s in zip(grown.epochs, grown.data_shares, strict=True)) * flops[-1]
    assert grown.flops_share == pytest.approx(spent / whole) != plain.flops_share
    assert " ".join(str(grown).split()).count("data 25% 100% 100%") == 1
    assert "data" not in str(plain)
    for wrong, parts in {
        (3, 2): ("shrinks from 3 to 2 at stage 1",),
        (1, 2, 3, 4): ("grows in 4 stages, the plan has 3",),
        (): ("number of examples of each stage",),
        (0, 1): ("number of examples",),
    }.items():
        says(lambda wrong=wrong: gr.plan(net, X, **options, stage_examples=wrong), *parts)
