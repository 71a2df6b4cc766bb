"""Runs that are so many steps long: growth anywhere in an epoch, data that goes on, resumed at any step."""

import itertools
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import growthring as gr
from growthring.checkpoint import Checkpoint, CheckpointError, load_weights, read_json
from growthring.errors import InputError, PlanError
from growthring.runs.run import read_run
from growthring.train import Recipe, Silence, Trainer, TrainingError, change
from growthring.train.lengths import evaluation_steps
from growthring.train.saved import totals_of
from tests.train.nets import plain, regression
from tests.train.runs import (
    KINDS,
    Killer,
    Runs,
    assert_same_run,
    assert_whole,
    every,
    kill_self,
    metrics,
    small,
    stepped,
)
from tests.train.test_own_data import TABLE
from tests.train.test_resume import Stop, stop

LENGTHS = ("stages=none", "start=0.25", "grown_at=0.5")  # two doublings


def mlp():
    return plain(8, 6, 2)


def table(steps, *settings):
    return change(stepped(steps, *settings), {"lr": 0.01})


def fitted(recipe, folder, **options):
    trainer = Trainer(recipe, folder, progress=Silence(), **options)
    return trainer, trainer.fit()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps") / "run"
    return folder, *fitted(stepped(50, *LENGTHS), folder)


def test_stages_end_where_the_plan_says_also_within_an_epoch(run):
    folder, trainer, result = run
    assert trainer.plan.stage_steps == (6, 19, 25) and trainer.total_steps == 50
    grown = [line for line in metrics(folder) if line["kind"] == "growth"]
    assert [(line["step"], line["epoch"]) for line in grown] == [(6, 2), (25, 8)]
    assert result.steps == 50 and result.epochs == pytest.approx(50 / 3)
    assert result.flops_share == pytest.approx(trainer.plan.flops_share)


def test_evaluations_are_even_and_at_the_ends_of_stages(run):
    folder, _, result = run
    found = read_run(folder)
    assert found.problems == [] and found.plan.unit == "steps" and found.plan.lengths == [6, 19, 25]
    assert [epoch.step for epoch in found.epochs] == evaluation_steps((6, 19, 25))
    assert [epoch.number for epoch in found.epochs] == pytest.approx(
        [epoch.step / 3 for epoch in found.epochs]
    )
    assert len(found.epochs) == 20 and {6, 25, 50} <= {epoch.step for epoch in found.epochs}
    assert found.epochs[-1].test_loss == result.test_loss and found.done == 50


def test_training_losses_are_of_the_steps_since_the_last_evaluation(tmp_path):
    losses = []

    def loss(outputs, targets):
        value = nn.functional.cross_entropy(outputs, targets)
        if outputs.requires_grad:
            losses.append(value.item())
        return value

    fitted(stepped(50, *LENGTHS), tmp_path, loss=loss)
    before, found = 0, []
    for step in evaluation_steps((6, 19, 25)):
        found.append(sum(losses[-50:][before:step]) / (step - before))
        before = step
    assert [e.train_loss for e in read_run(tmp_path).epochs] == pytest.approx(found)


def test_the_same_lengths_in_steps_and_in_epochs_are_the_same_training(tmp_path):
    times = "growth_at=(0.34, 0.67)"
    fitted(small("stages=none", times, "model_options.dropout=0.2"), tmp_path / "epochs")
    trainer, result = fitted(
        stepped(9, "stages=none", times, "model_options.dropout=0.2"), tmp_path / "steps"
    )
    assert trainer.plan.stage_steps == (3, 3, 3) and result.epochs == 3.0
    first, second = (
        load_weights(tmp_path / name / "model.safetensors") for name in ("epochs", "steps")
    )
    assert all(first[name].equal(second[name]) for name in first)
    results = [read_json(tmp_path / name / "result.json") for name in ("epochs", "steps")]
    for key in ("test_accuracy", "test_loss", "flops", "flops_share", "steps", "epochs"):
        assert results[0][key] == results[1][key], key


@pytest.mark.parametrize("settings", [("batch_growth=0.4",), ()])
@pytest.mark.each(2)
def test_no_example_is_lost_or_repeated_by_a_growth(settings, tmp_path):
    inputs = torch.randn(40, 6)
    seen = []

    def loss(outputs, targets):
        if outputs.requires_grad:
            seen.append(targets.tolist())
        return outputs.square().mean()

    data = TensorDataset(inputs, torch.arange(40))
    recipe = table(23, "batch_size=16", *settings)
    trainer = Trainer(recipe, tmp_path, model=mlp, train=data, loss=loss, progress=Silence())
    seen.clear()
    trainer.fit()
    sizes = [
        size
        for steps, size in zip(trainer.plan.stage_steps, trainer.plan.batch_sizes, strict=True)
        for _ in range(steps)
    ]
    batches = seen[-23:]
    handed, order = 0, [i for batch in batches for i in batch]
    for batch, size in zip(
        batches, sizes, strict=True
    ):  # only the end of an epoch makes one smaller
        assert len(batch) == min(size, 40 - handed)
        handed = (handed + len(batch)) % 40
    for epoch in range(len(order) // 40):
        assert sorted(order[40 * epoch : 40 * epoch + 40]) == list(range(40))
    pairs = zip(trainer.plan.stage_steps, trainer.plan.batch_sizes, strict=True)
    assert len(order) == trainer.train.count_examples(pairs)


@pytest.mark.parametrize("kind", ["steps", "steps of layer norm", "steps of growing batches"])
@pytest.mark.each(3)
def test_killed_after_each_of_its_steps(kind, tmp_path):
    recipe = KINDS[kind]()
    runs = Runs(recipe, log_rates=2)
    assert runs.start(tmp_path / "whole") == 0

    def in_step(trainer):  # before it is saved
        every(1)(trainer)
        trainer.progress = Killer(step, kill_self)

    def in_evaluation(trainer):  # after it is saved, before it has its record
        every(1)(trainer)
        trainer.progress = Killer(step, lambda: setattr(trainer, "evaluate", kill_self))

    after_growths = [end + 1 for end in itertools.accumulate(runs.trainer.plan.stage_steps[:-1])]
    for step in range(1, 12):
        for where in (in_step, in_evaluation) if step in after_growths else (in_evaluation,):
            assert runs.start(tmp_path / "killed", where) == -signal.SIGKILL, (step, where)
    assert runs.start(tmp_path / "killed") == 0
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert_whole(tmp_path / "killed", recipe)


class Counted(TensorDataset):
    """Counts how often an example is read."""

    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return super().__getitem__(index)


LOADERS = {
    "shuffled": lambda data: DataLoader(data, 16, shuffle=True),
    "of its own generator": lambda data: DataLoader(
        data, 16, shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "a list": lambda data: list(DataLoader(data, 16)),
}
OWN = {"model": mlp, "loss": nn.functional.mse_loss}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.each(3)
def test_a_loader_is_resumed_anywhere_in_its_epochs(kind, tmp_path):
    recipe = table(11)

    def options():
        return {**OWN, "train": LOADERS[kind](TABLE), "test": TABLE}

    fitted(recipe, tmp_path / "whole", **options())
    for at in (4, 8):
        trainer = Trainer(
            recipe,
            tmp_path / "run",
            checkpoint_steps=1,
            progress=Killer(at, stop),
            **options(),
        )
        if at > 4:
            trainer.resume()
        with pytest.raises(Stop):
            trainer.fit()
    trainer = Trainer(recipe, tmp_path / "run", progress=Silence(), **options())
    trainer.resume()
    trainer.fit()
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_loader_is_not_read_again_at_evaluations_and_growths(tmp_path):
    data = Counted(*TABLE.tensors)
    trainer = Trainer(
        table(12), tmp_path, train=DataLoader(data, 16), progress=Silence(), test=TABLE, **OWN
    )
    data.reads = 0
    trainer.fit()
    assert data.reads == 4 * 40  # twelve batches, three make an epoch


class Loop:
    """A loader of one's own: a second pass over it ends the first."""

    def __len__(self):
        return 3

    def __iter__(self):
        self.left = list(range(3))
        while self.left:
            at = 16 * self.left.pop(0)
            yield tuple(tensor[at : at + 16] for tensor in TABLE.tensors)


def test_a_search_in_mid_epoch_leaves_a_loader_where_it_was(tmp_path):
    recipe = table(11, "method=firefly")
    seen = {}
    for name, loader in (("own", Loop()), ("list", list(Loop()))):
        _, result = fitted(recipe, tmp_path / name, train=loader, test=TABLE, **OWN)
        seen[name] = (result.test_loss, result.flops)
        assert result.steps == 11 and result.epochs == pytest.approx(11 / 3)
    assert seen["own"] == seen["list"]


@pytest.mark.parametrize("length", [{"total_steps": 11}, {"epochs": 4}])
@pytest.mark.each(2)
def test_a_loader_that_also_tests_goes_on_where_it_was(length, tmp_path):
    seen = {}
    for name, loader in (("own", Loop()), ("list", list(Loop()))):
        recipe = change(small("lr=0.01"), length)
        _, result = fitted(recipe, tmp_path / name, train=loader, test=loader, **OWN)
        seen[name] = (result.test_loss, result.steps, result.epochs)
    assert seen["own"] == seen["list"]


def test_a_stream_that_leaves_out_the_last_batch(tmp_path):
    train = regression(torch.Generator().manual_seed(1), drop_last=True)
    recipe = table(9, "batch_size=16")
    trainer, result = fitted(recipe, tmp_path, train=train, test=TABLE, **OWN)
    assert result.flops_share == pytest.approx(trainer.plan.flops_share)
    assert result.steps == 9 and result.epochs == pytest.approx(4 + 16 / 40)


def test_a_stream_that_gives_nothing_more(tmp_path):
    class Ends(list):
        def __iter__(self):
            self.passes = getattr(self, "passes", 0) + 1
            return super().__iter__() if self.passes < 4 else iter(())

    trainer = Trainer(
        table(40), tmp_path, train=Ends(DataLoader(TABLE, 16)), progress=Silence(), **OWN
    )
    with pytest.raises(TrainingError, match=r"epoch \d had no examples"):
        trainer.fit()


@pytest.mark.parametrize("kind", ["fixed", "small"])
def test_baselines_are_as_long(kind, tmp_path):
    trainer, result = fitted(stepped(7, f"{kind}=true"), tmp_path)
    assert trainer.plan.stage_steps == (7,) and result.steps == 7
    assert result.flops_share == pytest.approx(1.0) or kind == "small"


def test_baselines_of_given_times_do_not_grow(tmp_path):
    recipe = stepped(9, "stages=none", "growth_at=(0.34, 0.67)", "fixed=true")
    assert Trainer(recipe, tmp_path, progress=Silence()).plan.stage_steps == (9,)


def test_what_a_recipe_may_say_about_its_length():
    recipe = Recipe("mine", mlp, total_steps=2000)
    assert str(recipe.length) == "2,000 steps" and recipe.plan.epochs is None
    assert recipe.as_dict()["total_steps"] == 2000 and "epochs" not in recipe.as_dict()
    assert "total_steps" not in Recipe("mine", mlp, epochs=3).as_dict()
    again = change(recipe, {"lr": 0.5})
    assert again.length == recipe.length and again.lr == 0.5
    assert str(change(recipe, {"epochs": 4}).length) == "4 epochs"
    assert (
        str(change(Recipe("mine", mlp, preset="paper"), {"total_steps": 99}).length) == "99 steps"
    )
    assert str(change(recipe, {"preset": "paper"}).length) == "2,000 steps"
    assert str(change(recipe, {"fixed": True, "total_steps": 7}).length) == "7 steps"
    with pytest.raises(PlanError, match="both give the length of the run"):
        Recipe("mine", mlp, epochs=3, total_steps=2000)
    with pytest.raises(PlanError, match="both give the length of the run"):
        change(recipe, {"epochs": 3, "total_steps": 5})
    with pytest.raises(PlanError, match=r"first_epochs=3 counts epochs, total_steps=90 steps"):
        Recipe("mine", mlp, preset="paper", first_epochs=3, total_steps=90)
    with pytest.raises(InputError, match="'total_steps' is int"):
        Recipe("mine", mlp, total_steps="many")


def test_too_few_steps_are_refused_before_anything_is_made(tmp_path):
    with pytest.raises(PlanError, match=r"2 steps do not reach for 3 stages.*or more steps"):
        Trainer(stepped(2), tmp_path / "run", progress=Silence())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ({"stage": 0, "step": 5, "steps_in_stage": 5}, "at step 5, the 6. of stage 0"),
        ({"stage": 1, "step": 5, "steps_in_stage": 2}, "at step 5, the 3. of stage 1"),
        ({"stage": 4, "step": 9}, r"the plan with \[1, 3, 5\] steps does not have"),
    ],
)
def test_a_place_that_the_plan_does_not_have(place, says, tmp_path):
    plan = gr.plan(mlp(), torch.zeros(1, 6), total_steps=9, start=0.25, grown_at=0.5)
    assert plan.stage_steps == (1, 3, 5)

    def found(totals):
        return totals_of(Checkpoint(totals["step"], {"totals": totals}, tmp_path, {}), plan)

    assert found({"stage": 2, "step": 4, "epoch": 1}).step == 4
    with pytest.raises(CheckpointError, match=says):
        found(place)


def test_another_number_of_steps_is_another_run(tmp_path):
    trainer = Trainer(stepped(9), tmp_path, checkpoint_steps=1, progress=Killer(4, stop))
    with pytest.raises(Stop):
        trainer.fit()
    for other, says in (
        (stepped(10), "total_steps: 9 -> 10"),
        (small(), "total_steps: 9 -> None; epochs: None -> 3"),
    ):
        with pytest.raises(InputError, match=says):
            Trainer(other, tmp_path, progress=Silence()).resume()
