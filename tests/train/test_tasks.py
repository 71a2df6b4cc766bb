"""Tasks: which one a recipe has, what its options may be, and one of a user's own from a file."""

import re

import pytest

from growthring import zoo
from growthring.checkpoint import load_weights, read_json
from growthring.cli.trust import recipe_source
from growthring.errors import InputError
from growthring.train import RECIPES, Recipe, Trainer, change, load_recipe
from growthring.train.setup import check
from growthring.train.tasks import TASKS, Classification, Translation, task_of
from tests.cli.commands import run
from tests.train.runs import Killer, assert_same_run, small, translation
from tests.train.test_resume import Stop, stop

OWN = '''\
"""Sine waves: their height at the next place, judged by the error in millimetres."""

import torch
from torch import nn
from growthring.data import BatchStream, DatasetBatches
from growthring.runs.metrics import LOSS, Metric
from growthring.train import Outcome, Recipe, Streams, Task


def waves(count, seed):
    generator = torch.Generator().manual_seed(seed)
    starts = 6.28 * torch.rand(count, 1, generator=generator)
    places = starts + 0.3 * torch.arange(9)
    return torch.utils.data.TensorDataset(places.sin()[:, :8], places.sin()[:, 8:])


class Waves(Task):
    name = "waves"
    metrics = (
        Metric("test_error", "error", "mm", is_higher_better=False, digits=1),
        Metric("test_within", "within 10 cm", "%"),
        LOSS,
    )
    options = {"millimetres": 1000.0}

    def example(self, recipe, count=2):
        return torch.zeros(count, *recipe.input_shape)

    def streams(self, recipe, generator, place):
        train = DatasetBatches(waves(recipe.num_train, 1), recipe.batch_size, generator)
        return Streams(train, DatasetBatches(waves(50, 2), 25, None))

    def loss(self, label_smoothing):
        return nn.MSELoss()

    def scores(self, test_loss):
        return {"test_error": 1000 * test_loss**0.5}

    def finish(self, model, test, recipe):
        errors = torch.cat([(model(x) - y).abs() for x, y in test.fork(0)])
        sample = (("place", "first"), ("error", f"{errors[0].item():.2f}"))
        return Outcome({"test_within": (errors < 0.1).float().mean().item()}, (sample,), ("Of 50 waves.",))


def make(width=8):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def mine():
    return Recipe("mine", make, task=Waves(), input_shape=(8,), num_train=80, batch_size=16, epochs=4,
        stages=2, growth=None, lr=0.05, optimizer_options={"momentum": 0.9})
'''


@pytest.fixture
def own(tmp_path):
    (tmp_path / "waves.py").write_text(OWN)
    return f"{tmp_path / 'waves.py'}:mine"


def test_a_task_of_ones_own_is_trained_resumed_compared_and_reported(own, capsys, tmp_path):
    whole = tmp_path / "whole"
    status, out, err = run(capsys, "train", "--recipe", own, "--out", whole)
    assert status == 0, err
    assert re.search(r"whole: test error \d+\.\d mm, ", out) and "Of 50 waves." in out
    assert re.search(r"place +first\n +error +0\.\d\d\n", out)
    assert re.search(r"stage 1  epoch 4 .* test error \d+\.\d mm  ", err)
    assert "measuring within 10 cm on the test data ..." in err
    result = read_json(whole / "result.json")
    assert set(result["scores"]) == {"test_error", "test_within"}
    assert result["test_accuracy"] is None

    stopped = tmp_path / "stopped"
    source = {**recipe_source(own), "settings": [], "fixed": False, "data": None}
    killer = {"progress": Killer(7, stop), "checkpoint_steps": 1, "source": source}
    with pytest.raises(Stop):
        Trainer(load_recipe(own, RECIPES), stopped, **killer).fit()
    assert run(capsys, "train", "--resume", stopped, "--recipe", own)[0] == 0
    assert_same_run(whole, stopped)

    status, out, err = run(capsys, "report", whole, stopped, "--out", tmp_path / "page.html")
    assert status == 0 and "test error" in out, err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "test error, mm" in page and "place" in page and "Of 50 waves." in page

    out_folder = tmp_path / "compare"
    arguments = [
        "compare",
        "--recipe",
        own,
        "--methods",
        "paired",
        "--seeds",
        1,
        "--out",
        out_folder,
        "--json",
    ]
    status, out, err = run(capsys, *arguments)
    assert status == 0, err
    page = (out_folder / "report.html").read_text(encoding="utf-8")
    assert "error mm" in page or "error, mm" in page
    status, out, err = run(capsys, "eval", whole, "--recipe", own)
    assert status == 2 and "the test data of the task 'waves' cannot be found" in err


def test_a_recipe_has_the_task_that_reads_its_data():
    names = {
        task_of(Recipe("r", zoo.mlp8, data=name)).name
        for task in TASKS.values()
        for name in task.data
    }
    assert names == set(TASKS) == {"classification", "language", "translation"}
    assert task_of(Recipe("r", zoo.mlp8, data="digits", task=Translation())).name == "translation"
    with pytest.raises(InputError, match="there is no data set 'poems'; there are digits"):
        task_of(Recipe("r", zoo.mlp8, data="poems"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Classification, "task=the class Classification is no growthring.train.Task"),
        (3, "task=3 is no"),
    ],
)
def test_what_is_no_task(given, words):
    with pytest.raises(InputError, match=words):
        check(Recipe("r", zoo.mlp8, task=given))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"beams": 3},
            "task_options has 'beams'; the settings of the task 'translation' are: source, tar",
        ),
        ({"beam": 2.5}, "task_options.beam=2.5: needed is int, such as 4"),
        ({"beam": True}, "task_options.beam=True"),
        ({"beam": 0}, "task_options.beam=0: it is at least 1"),
        ({"vocab_size": 100}, "task_options.vocab_size=100: it is at least 259"),
        ({"max_length": 1}, "task_options.max_length=1: it is at least 2"),
        ({"length_penalty": 11}, "task_options.length_penalty=11: it is from -10 to 10"),
        ({"length_penalty": float("nan")}, "task_options.length_penalty=nan"),
        ({"num_test": 0}, "task_options.num_test=0: it is a number from 1 on"),
        ({"num_test": "all"}, "task_options.num_test='all'"),
        ({"test_on": "dev"}, "task_options.test_on='dev': it is 'test' or 'valid'"),
    ],
)
def test_options_of_translations(settings, words):
    recipe = change(translation(), {"task_options": settings})
    with pytest.raises(InputError, match=re.escape(words)):
        check(recipe)


def test_options_of_a_task_that_has_none():
    words = "task_options has 'beam'; the settings of the task 'classification' are: none."
    with pytest.raises(InputError, match=re.escape(words)):
        check(small("task_options.beam=3"))


def test_weights_of_ones_own_task_can_be_loaded(own, capsys, tmp_path):
    assert run(capsys, "train", "--recipe", own, "--out", tmp_path / "run", "--fixed")[0] == 0
    status, out, _ = run(capsys, "export", tmp_path / "run", tmp_path / "m.safetensors")
    assert status == 0 and re.search(r"test within: +\d", out)
    assert load_weights(tmp_path / "m.safetensors")["0.weight"].shape == (8, 8)
