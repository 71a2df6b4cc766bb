"""Whole runs with every growth method: resumed bit for bit, their costs, their order of data."""

import signal
import sys

import pytest

from growthring.checkpoint import list_checkpoints, load_weights, read_json
from growthring.methods import METHODS
from growthring.train import Silence, Trainer
from tests.train.runs import (
    Killer,
    Runs,
    assert_same_run,
    assert_whole,
    kill_self,
    metrics,
    resnet,
    small,
)

SEARCHING = {n for n, kind in METHODS.items() if kind.searches}
OPTIMIZERS = {
    "sgd": (),
    "adam": ("optimizer=adam", "lr=0.01", "optimizer_options={}"),
    "adamw": ("optimizer=adamw", "lr=0.01", "optimizer_options={}"),
    "avagrad": ("optimizer=avagrad", "lr=0.1", "optimizer_options={}"),
    "lars": ("optimizer=lars", "lr=0.5", "optimizer_options={}"),
}
QUICK = [*((m, "sgd") for m in METHODS), ("net2net", "adam")]
GRID = [
    pytest.param(m, o, marks=[] if (m, o) in QUICK else [pytest.mark.slow])
    for m in METHODS
    for o in OPTIMIZERS
]


def recipe_of(method, optimizer="sgd", make=small, *settings):
    return make(f"method={method}", *OPTIMIZERS[optimizer], *settings)


def fit(recipe, folder):
    trainer = Trainer(recipe, folder, progress=Silence())
    return trainer, trainer.fit()


def press():
    signal.raise_signal(signal.SIGINT)


def killed(at, act, steps=None):
    """Makes a trainer write checkpoints every so many steps (None: at stage ends), and end after step `at`."""

    def put(trainer):
        trainer._cadence = (steps, 600.0, 3)
        trainer.progress = Killer(at, act)

    return put


def check_resumed(recipe, folder):
    """Ended in mid-stage (one step is lost), by hand right before a growth, and right after one."""
    runs = Runs(recipe)
    assert runs.start(folder / "whole") == 0
    assert_whole(folder / "whole", recipe)
    assert runs.start(folder / "middle", killed(5, kill_self, 1)) == -signal.SIGKILL
    assert runs.start(folder / "before", killed(6, press)) == 1
    assert runs.start(folder / "after", killed(7, kill_self)) == -signal.SIGKILL
    for name, step, grown in (("middle", 4, 1), ("before", 6, 1), ("after", 6, 2)):
        assert list_checkpoints(folder / name)[-1][0] == step
        assert len([1 for line in metrics(folder / name) if line["kind"] == "growth"]) == grown
        assert runs.start(folder / name) == 0
        assert_same_run(folder / "whole", folder / name)


@pytest.mark.parametrize(("method", "optimizer"), GRID)
@pytest.mark.each(8)
def test_a_resumed_run_is_the_same(method, optimizer, tmp_path):
    check_resumed(recipe_of(method, optimizer), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_of_a_residual_network_is_the_same(method, tmp_path):
    check_resumed(recipe_of(method, "sgd", resnet), tmp_path)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.each(5)
def test_costs(method, tmp_path):
    recipe = recipe_of(method)
    trainer, result = fit(recipe, tmp_path)
    lines = [line for line in metrics(tmp_path) if line["kind"] == "growth"]
    spent = [line["search_flops"] for line in lines]
    assert len(spent) == 2 and result.search_flops == pytest.approx(sum(spent))
    assert all(s > 0 for s in spent) == (method in SEARCHING)
    assert any(s > 0 for s in spent) == (method in SEARCHING)
    # a network of widths w has 2 (64 w + w² + 10 w) FLOPs; 96 examples an epoch, one epoch a stage
    widths = [min(trainer.plan.named_widths(t).values()) for t in range(3)]
    forward = [2 * (64 * w + w * w + 10 * w) for w in widths]
    assert widths[-1] == 8
    trained = 3 * 96 * sum(forward)
    assert result.flops == pytest.approx(trained + sum(spent))
    assert result.flops_share == pytest.approx(result.flops / (3 * 96 * 3 * forward[-1]))
    assert read_json(tmp_path / "result.json")["search_flops"] == result.search_flops
    epochs = [line for line in metrics(tmp_path) if line["kind"] == "epoch"]
    assert epochs[-1]["flops"] == pytest.approx(result.flops)
    assert epochs[-1]["flops_share"] == pytest.approx(result.flops_share)
    assert epochs[0]["flops"] == pytest.approx(3 * 96 * forward[0]), "no search before a growth"


def test_gradmax_costs_about_a_training_pass_over_its_examples(tmp_path):
    """One forward and one backward pass, plus the outer products; counted for 96 · 6 ≥ 512 examples."""
    recipe = recipe_of("gradmax")
    trainer, _ = fit(recipe, tmp_path)
    first = next(line for line in metrics(tmp_path) if line["kind"] == "growth")["search_flops"]
    width = min(trainer.plan.named_widths(0).values())
    forward = 2 * (64 * width + width * width + 10 * width)
    assert 2 * 512 * forward < first < 12 * 512 * forward


@pytest.mark.parametrize("method", ["splitting", "firefly-split", "firefly"])
@pytest.mark.each(3)
def test_searching_longer_costs_more(method, tmp_path):
    costs = []
    for steps in (1, 4):
        recipe = recipe_of(method, "sgd", small, f"method_options.steps={steps}")
        _, result = fit(recipe, tmp_path / str(steps))
        costs.append(result.search_flops)
    assert 2 < costs[1] / costs[0] <= 4, costs


def test_the_small_baseline_keeps_the_seeds_width(tmp_path):
    _, grown = fit(small(), tmp_path / "grown")
    trainer, result = fit(small("small=true"), tmp_path / "small")
    assert trainer.grower is None
    weights = load_weights(tmp_path / "small" / "model.safetensors")
    full = load_weights(tmp_path / "grown" / "model.safetensors")
    assert weights["1.weight"].shape == (2, 64) and weights["4.weight"].shape == (2, 2)
    assert full["1.weight"].shape == (8, 64)
    assert result.parameters == sum(t.numel() for t in weights.values()) < grown.parameters
    thin, wide = 64 * 2 + 4 + 20, 64 * 8 + 64 + 80
    assert result.flops_share == pytest.approx(thin / wide)
    assert result.flops == pytest.approx(3 * 96 * 3 * 2 * thin)
    assert result.search_flops == 0 and result.epochs == 3
    assert not [line for line in metrics(tmp_path / "small") if line["kind"] == "growth"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measured on Linux only")
def test_peak_memory(tmp_path):
    _, result = fit(recipe_of("firefly"), tmp_path)
    assert result.peak_memory is not None and result.peak_memory > 0


@pytest.mark.slow
def test_all_methods_train_on_the_same_batches(tmp_path):
    """Searches draw from streams of their own, and growth from a generator of its own."""
    seen = {}
    for method in METHODS:
        trainer = Trainer(recipe_of(method), tmp_path / method, progress=Silence())
        steps, inner = [], trainer._step

        def record(batch, steps=steps, inner=inner):
            steps.append(tuple(part.clone() for part in batch))
            inner(batch)

        trainer._step = record
        trainer.fit()
        seen[method] = steps
    first = seen["paired"]
    assert len(first) == 9
    for method, steps in seen.items():
        assert len(steps) == len(first), method
        for (x, y), (x2, y2) in zip(first, steps, strict=True):
            assert x.equal(x2) and y.equal(y2), method
    assert not first[0][0].equal(first[3][0]), "epochs differ"
