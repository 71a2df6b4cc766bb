"""Runs on data that grows with the stages, with and without dynamic OSGD."""

import signal

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import growthring as gr
from growthring.checkpoint import load_weights, read_json
from growthring.cli import main
from growthring.errors import InputError, PlanError
from growthring.runs.run import read_run
from growthring.train import Interrupted, Recipe, Silence, Trainer, change, parse_settings
from growthring.train.card import card_of
from growthring.train.evaluation import card_of_recipe, evaluate_card
from growthring.train.loop import Loop
from growthring.train.recipes import RECIPES
from growthring.train.setup import make_model, make_plan
from tests.messages.test_messages import says
from tests.train.runs import CLASSES, assert_same_run, metrics, small, translation

X = torch.randn(80, 6, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(X, torch.arange(80) % 4)
TEST = TensorDataset(X[:20], torch.arange(20) % 4)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


def fit(recipe, folder, **options):
    trainer = Trainer(recipe, folder, progress=Silence(), **options)
    return trainer, trainer.fit()


def own(folder, train, *settings, test=TEST):
    recipe = Recipe("own", mlp, epochs=6, batch_size=16, lr=0.05, stages=3)
    return fit(change(recipe, parse_settings(settings)), folder, model=mlp, train=train, test=test)


def test_each_stage_is_trained_on_its_classes(tmp_path, monkeypatch):
    seen: dict[int, set[int]] = {}
    step = Loop._step

    def watched(self, batch):
        seen.setdefault(self.totals.stage, set()).update(batch[1].tolist())
        return step(self, batch)

    monkeypatch.setattr(Loop, "_step", watched)
    trainer, result = fit(small(*CLASSES), tmp_path / "run")
    growing = trainer.parts.growing
    assert [len(growing.seen(t)) for t in range(3)] == [4, 7, 10]
    assert {t: tuple(sorted(c)) for t, c in seen.items()} == {
        t: tuple(sorted(growing.seen(t))) for t in range(3)
    }
    assert result.steps == sum(trainer.parts.stage_steps)
    assert trainer.totals.examples == sum(trainer.parts.stage_examples)


def test_what_is_known_at_the_end_of_each_stage(tmp_path):
    trainer, result = fit(small(*CLASSES), tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert [s.stage for s in run.stages] == [0, 1, 2]
    assert [s.classes for s in run.stages] == [4, 7, 10]
    assert [s.examples for s in run.stages] == list(trainer.parts.growing.sizes)
    assert [len(s.parts) for s in run.stages] == [1, 2, 3]
    # the test data by hand
    images, labels = zip(*trainer.test.fork(0), strict=True)
    images, labels = torch.cat(images), torch.cat(labels)
    right = trainer.model.eval()(images).argmax(1) == labels
    last = run.stages[-1]
    assert last.accuracy == pytest.approx(float(right.double().mean())) == result.test_accuracy
    for part, classes in zip(last.parts, trainer.parts.growing.classes, strict=True):
        chosen = torch.isin(labels, torch.tensor(classes))
        assert part == pytest.approx(float(right[chosen].double().mean()))
    known = [[s.parts[k] for s in run.stages[k:-1]] for k in range(2)]
    lost = [max(before) - now for before, now in zip(known, last.parts, strict=False)]
    assert result.scores["test_forgetting"] == pytest.approx(sum(lost) / 2)
    assert [m.key for m in run.metrics] == ["test_accuracy", "test_loss", "test_forgetting"]


def test_costs_count_what_each_stage_has_and_the_extra_pass(tmp_path):
    plain, one = fit(small(*CLASSES), tmp_path / "plain")
    _, two = fit(small(*CLASSES, "osgd=linear"), tmp_path / "osgd")
    flops, sizes = plain.account.costs["flops"], plain.parts.growing.sizes
    epochs = plain.plan.epochs
    spent = 3 * sum(n * s * f for n, s, f in zip(epochs, sizes, flops, strict=True))
    assert one.flops == pytest.approx(spent, rel=1e-6) and one.pass_flops == 0
    whole = 3 * flops[-1] * sum(n * s for n, s in zip(epochs, sizes, strict=True))
    assert one.flops_share == pytest.approx(spent / whole)
    assert one.flops_share == pytest.approx(plain.plan.flops_share)
    passes = 3 * sum(s * f for s, f in zip(sizes[:-1], flops[:-1], strict=True))
    assert two.pass_flops == pytest.approx(passes) and two.flops == pytest.approx(spent + passes)
    assert read_json(tmp_path / "osgd" / "result.json")["pass_flops"] == two.pass_flops


def test_full_size_goes_through_the_same_stages(tmp_path):
    grown, _ = fit(small(*CLASSES), tmp_path / "grown")
    fixed, result = fit(small(*CLASSES, "fixed=true", "osgd=linear"), tmp_path / "fixed")
    assert fixed.parts.stage_steps == grown.parts.stage_steps
    assert fixed.parts.growing.classes == grown.parts.growing.classes
    assert result.flops_share > 1, "full size, and the passes"
    assert len(read_run(tmp_path / "fixed").stages) == 3
    narrow, _ = fit(small(*CLASSES, "small=true"), tmp_path / "small")
    assert narrow.parts.stage_steps == grown.parts.stage_steps


def test_dynamic_osgd_changes_the_run_from_the_first_growth_on(tmp_path):
    fit(small(*CLASSES), tmp_path / "plain")
    fit(small(*CLASSES, "osgd=linear"), tmp_path / "osgd")
    pairs = [
        [line for line in metrics(tmp_path / name) if line["kind"] == "epoch"]
        for name in ("plain", "osgd")
    ]
    stages = [line["stage"] for line in pairs[0]]
    losses = [[line["train_loss"] for line in lines] for lines in pairs]
    for stage, a, b in zip(stages, *losses, strict=True):
        assert (a == b) == (stage == 0)
    weights = [load_weights(tmp_path / n / "model.safetensors") for n in ("plain", "osgd")]
    assert any(not torch.equal(a, weights[1][n]) for n, a in weights[0].items())


@pytest.mark.parametrize("fixed", ["false", "true"])
def test_interrupted_in_the_pass_and_resumed(fixed, tmp_path, monkeypatch):
    recipe = small(*CLASSES, "osgd=linear", f"fixed={fixed}", "model_options.dropout=0.3")
    fit(recipe, tmp_path / "whole")
    batches = []
    look = Trainer.in_pass

    def press(self):
        batches.append(self.totals.stage)
        if len(batches) == 3:
            signal.raise_signal(signal.SIGINT)
        look(self)

    monkeypatch.setattr(Trainer, "in_pass", press)
    trainer = Trainer(recipe, tmp_path / "run", progress=Silence())
    with pytest.raises(Interrupted, match="stopped in the pass over the data of stage"):
        trainer.fit()
    monkeypatch.undo()
    again = Trainer(recipe, tmp_path / "run", progress=Silence())
    again.resume()
    again.fit()
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_data_sets_of_ones_own(tmp_path):
    stream = gr.streams.ProgressiveClasses(DATA, first=2, step=1)
    trainer, result = own(tmp_path / "run", stream, "osgd=cosine")
    assert trainer.parts.stage_examples == tuple(
        n * s for n, s in zip(trainer.plan.epochs, (40, 60, 80), strict=True)
    )
    assert result.pass_flops > 0 and "test_forgetting" in result.scores
    halves = [TensorDataset(X[:40], torch.arange(40) % 4), DATA]
    trainer, _ = own(tmp_path / "sets", gr.streams.ProgressiveSets(halves), "stages=2")
    assert trainer.parts.growing.sizes == (40, 80)


def test_a_recipe_s_stream_on_data_of_ones_own(tmp_path):
    fractions = "stream_options.fractions=(0.25,0.5,1.0)"
    for name, data in (("set", DATA), ("loader", DataLoader(DATA, 16, shuffle=True))):
        trainer, result = own(tmp_path / name, data, "stream=data", fractions)
        assert trainer.parts.growing.sizes == (20, 40, 80)
        assert result.epochs == 6
        assert trainer.totals.examples == sum(trainer.parts.stage_examples)


def test_loaders_of_ones_own_with_steps(tmp_path):
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(DATA, 16, shuffle=True, generator=generator)
    stream = gr.streams.ProgressiveClasses(loader, first=2, step=1)
    trainer, result = own(tmp_path / "run", stream, "total_steps=14", "osgd=linear")
    assert result.steps == 14 and sum(trainer.parts.stage_steps) == 14
    assert [s.stage for s in read_run(tmp_path / "run").stages] == [0, 1, 2]


def test_a_regression_on_growing_data(tmp_path):
    data = TensorDataset(X, X[:, :1])
    stream = gr.streams.ProgressiveData(data, (0.5, 1.0))
    recipe = Recipe("own", mlp, epochs=4, batch_size=16, lr=0.05)
    make = lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))  # noqa: E731
    mse = nn.functional.mse_loss
    trainer, result = fit(recipe, tmp_path / "run", model=make, train=stream, test=data, loss=mse)
    assert trainer.plan.num_stages == 2, "as many as the data has"
    assert result.scores == {} and read_run(tmp_path / "run").stages[1].accuracy is None


def test_more_stages_in_the_plan_than_in_the_data(tmp_path):
    stream = gr.streams.ProgressiveClasses(DATA, first=2, step=2)
    trainer, _ = own(tmp_path / "run", stream)
    assert trainer.plan.data_shares == (0.5, 1.0, 1.0)
    stages = read_run(tmp_path / "run").stages
    assert [s.classes for s in stages] == [2, 4, 4] and stages[2].parts[2:] == ()


@pytest.mark.parametrize("name", ["classes", "data"])
def test_the_paper_s_recipes(name):
    recipe = RECIPES[f"cifar100-stream-{name}"]()
    assert recipe.plan.preset == "paper" and recipe.length.count == 200
    fixed = change(recipe, {"fixed": True})  # goes through the same stages, and is not traced
    plan = make_plan(fixed, make_model(fixed, torch.Generator().manual_seed(0)))
    assert plan.epochs == (10, 12, 14, 17, 20, 24, 29, 35, 39)
    assert plan.data_shares == pytest.approx([0.2 + 0.1 * t for t in range(9)])
    small_one = RECIPES[f"cifar100-stream-{name}-small"]()
    assert small_one.stream == name and small_one.num_train == 10_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classes", "data"])
def test_what_the_paper_s_recipes_cost(name):
    recipe = change(RECIPES[f"cifar100-stream-{name}"](), {"osgd": "linear"})
    plan = make_plan(recipe, make_model(recipe, torch.Generator().manual_seed(0)))
    assert plan.flops_share == pytest.approx(0.6335, abs=1e-4), "65.36 % in the paper"
    assert "another 1.27% of the FLOPs" in str(plan)


def test_plans_say_what_the_passes_cost(tmp_path):
    trainer, result = fit(small(*CLASSES, "osgd=linear"), tmp_path / "run")
    share = result.pass_flops / (result.flops / result.flops_share)
    assert f"another {share:.2%} of the FLOPs" in str(trainer.plan)


def test_advice_knows_no_growing_data(capsys):
    assert main(["advise", "--recipe", "cifar100-stream-data-small", "--quiet"]) != 0
    assert "data that grows with the stages" in capsys.readouterr().err
    batches, loss = [(X, X[:, :4])], nn.functional.mse_loss
    options = {"batches": batches, "loss": loss, "total_steps": 4000, "stage_examples": (1, 2)}
    says(
        lambda: gr.advise(mlp(), X, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), **options),
        "data that grows with the stages",
        error=InputError,
    )


def test_plans_of_recipes_whose_data_is_not_read():
    recipe = change(RECIPES["demo"](), {"stream": "classes"})
    model = make_model(recipe, torch.Generator())
    says(lambda: make_plan(recipe, model), "in how many stages", "stages=9", error=InputError)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (["stream=tasks"], ("stream='tasks'", "classes, data")),
        (["stream=classes", "stream_options.firt=3"], ("'firt'", "first, step")),
        (["stream_options.first=3"], ("there is no stream",)),
        (["stream=classes", "stream_options.first=0"], ("stream_options.first=0",)),
        (["stream=data", "stream_options.fractions=(0.5,0.2)"], ("shrinks at stage 1",)),
        (["stream=data", "stream_options.replacement=3"], ("true or false",)),
        (["stream=classes", "stream_outputs=new"], ("stream_outputs='new'", "all, seen")),
        (["osgd=square"], ("osgd='square'", "linear, cosine")),
        (["stream=classes"], ("first=20", "10 classes only")),
        (["stream=classes", "stream_options={'first': 1, 'step': 1}"], ("10 stages, the plan has 3",)),
        (["stream=data"], ("9 stages, the plan has 3",)),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_before_anything_is_written(settings, parts, tmp_path):
    says(lambda: Trainer(small(*settings), tmp_path / "run", progress=Silence()), *parts)
    assert not (tmp_path / "run").exists()


def test_growing_data_of_other_kinds_of_data(tmp_path):
    recipe = translation("stream=data", "stages=9", "epochs=9")
    says(lambda: Trainer(recipe, tmp_path, progress=Silence()), "one by one", error=InputError)


def test_a_budget_on_growing_data(tmp_path):
    trainer, result = fit(small(*CLASSES, "epochs=20", "budget=0.6", "stages=3"), tmp_path / "run")
    assert 0.5 < result.flops_share <= 0.6
    assert result.flops_share == pytest.approx(trainer.plan.flops_share)


def test_growing_data_that_shrinks_the_plan(tmp_path):
    stream = gr.streams.ProgressiveClasses(DATA, first=1, step=1)
    says(
        lambda: own(tmp_path / "run", stream), "grows in 4 stages, the plan has 3", error=InputError
    )
    says(
        lambda: gr.plan(mlp(), X, epochs=9, stages=3, stage_examples=stream.sizes),
        "the data grows in 4 stages, the plan has 3",
        error=PlanError,
    )


# Outputs that are gained with the classes.

SEEN = (*CLASSES, "stream_outputs=seen")


def test_outputs_come_with_the_classes(tmp_path):
    trainer, result = fit(small(*SEEN, "osgd=linear"), tmp_path / "run")
    assert trainer.plan.classes == (4, 7, 10)
    run = read_run(tmp_path / "run")
    assert [n in g.widths.values() for g, n in zip(run.growths, (7, 10), strict=True)] == [True] * 2
    assert [len(s.parts) for s in run.stages] == [1, 2, 3]
    # while classes are to come, only those that have count
    for epoch in run.epochs:
        seen = run.stages[epoch.stage]
        if epoch.number == run.epochs[-1].number:
            assert epoch.test_accuracy == pytest.approx(seen.accuracy) == result.test_accuracy
    last_of_first = [e for e in run.epochs if e.stage == 0][-1]
    assert last_of_first.test_accuracy == pytest.approx(run.stages[0].accuracy)
    assert all(float(e.test_loss) < 10 for e in run.epochs)


def test_growths_with_new_classes_keep_the_old_logits(tmp_path):
    _, result = fit(small(*SEEN, "noise=0", "variance_transfer=off"), tmp_path / "run")
    growths = read_run(tmp_path / "run").growths
    assert len(growths) == 2 and all(g.change is not None and g.change <= 1e-5 for g in growths)
    weights = load_weights(tmp_path / "run" / "model.safetensors")
    assert result.parameters == sum(tensor.numel() for tensor in weights.values())


def test_the_file_of_weights_knows_the_order_of_its_classes(tmp_path, capsys):
    trainer, result = fit(small(*SEEN), tmp_path / "run")
    order = trainer.parts.test.data.classes
    assert sorted(order) == sorted(map(str, range(10))) and list(order) != sorted(order)
    card = card_of(safe_metadata(tmp_path / "run" / "model.safetensors"))
    assert card.classes == order
    found = evaluate_card(trainer.model, card)
    assert found.test_accuracy == pytest.approx(result.test_accuracy)
    recipe_card = card_of_recipe(trainer.recipe, None)
    assert recipe_card.classes == order


def safe_metadata(path):
    with safe_open(path, "pt") as file:
        return file.metadata()


def test_outputs_of_classes_of_ones_own_come_in_their_order(tmp_path):
    mixed = gr.streams.ProgressiveClasses(DATA, first=2, step=1, order=[3, 1, 0, 2])
    says(
        lambda: own(tmp_path / "mixed", mixed, "stream_outputs=seen"),
        *("order of their numbers", "order=range(n)"),
        error=InputError,
    )
    stream = gr.streams.ProgressiveClasses(DATA, first=2, step=1, order=range(4))
    trainer, _ = own(tmp_path / "run", stream, "stream_outputs=seen", "osgd=linear")
    assert trainer.plan.classes == (2, 3, 4)
    says(
        lambda: own(tmp_path / "small", stream, "stream_outputs=seen", "small=true"),
        "cannot gain outputs",
        error=InputError,
    )
    fixed, result = own(tmp_path / "fixed", stream, "stream_outputs=seen", "fixed=true")
    assert fixed.plan.classes == () and result.flops_share == 1


def test_a_paper_plan_of_growing_outputs():
    recipe = change(RECIPES["cifar100-stream-classes-small"](), {"stream_outputs": "seen"})
    plan = make_plan(recipe, make_model(recipe, torch.Generator().manual_seed(0)))
    assert plan.classes == (20, 30, 40, 50, 60, 70, 80, 90, 100)
