"""growthring plan: what a recipe would do and cost, for people, for programs and as a picture."""

import pytest

from growthring.train import RECIPES
from tests.cli.commands import TINY, one_object, run

PUBLISHED = [
    "cifar10-resnet20",
    "cifar10-vgg11",
    "cifar10-mobilenetv1",
    "cifar100-resnet18",
    "cifar100-vgg19",
    "cifar100-mobilenetv1",
    "imagenet-resnet50",
    "imagenet-mobilenetv1",
    "cifar10-wrn28-1",
]
SMALL = ["--recipe", "demo", "--set", "model_options.width=8"]


@pytest.mark.parametrize("command", ["plan", "train"])
def test_help_lists_the_recipes(command, capsys):
    status, out, _ = run(capsys, command, "--help")
    assert status == 0
    text = out.replace("-\n", "-").split()
    words = {word.strip(",;") for word in text}
    joined = "".join(text)
    assert all(name in words or name in joined for name in [*PUBLISHED, "demo"])


def test_json_is_one_object_with_lists_over_stages(capsys):
    status, out, err = run(capsys, "plan", "--recipe", "demo", "--json")
    found = one_object(out)
    assert (status, err) == (0, "")
    lists = [found[key] for key in ("widths", "epochs", "batch_sizes", "parameters", "flops")]
    assert all(isinstance(values, list) and len(values) == found["stages"] for values in lists)
    assert sum(found["epochs"]) == RECIPES["demo"]().plan.epochs and 0 < found["flops_share"] < 1
    assert found["recipe"] == "demo" and found["published_flops_share"] is None


@pytest.mark.slow
def test_a_published_case_shows_the_papers_number(capsys):
    status, out, _ = run(capsys, "plan", "--recipe", "cifar10-resnet20")
    assert status == 0 and "The paper reports 54.90%" in out and "epochs" in out
    assert any(bar in out for bar in "▁▂▃▄▅▆▇█")


def test_budget(capsys):
    status, out, err = run(capsys, "plan", *SMALL, "--budget", "50%", "--json")
    assert status == 0, err
    found = one_object(out)
    assert 0.3 < found["flops_share"] <= 0.5 + 1e-9


@pytest.mark.parametrize("budget", ["0", "-5%", "150%", "half", "nan", "inf", "", "%"])
def test_a_budget_that_is_none(budget, capsys):
    status, out, err = run(capsys, "plan", *SMALL, f"--budget={budget}")
    assert status == 2 and out == "" and "is not a share" in err


def test_a_budget_that_cannot_be_met(capsys):
    status, out, err = run(capsys, "plan", *SMALL, "--budget", "0.1%")
    assert status == 2 and out == "" and "budget" in err and "Traceback" not in err


def test_measure(capsys):
    status, out, _ = run(capsys, "plan", *TINY, "--measure", "--json")
    found = one_object(out)
    assert status == 0 and len(found["seconds"]) == 3 and min(found["seconds"]) > 0
    assert found["seconds_share"] > 0


def test_plot(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "cost.png"
    status, out, _ = run(capsys, "plan", *TINY, "--plot", path, "--json")
    assert status == 0 and one_object(out) and path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", ["no/such/folder/cost.png", "cost.nonsense"])
def test_a_plot_that_cannot_be_written(name, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    status, _, err = run(capsys, "plan", *TINY, "--plot", tmp_path / name)
    assert status == 2 and "Traceback" not in err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--set", "epochs=2", "--set", "stages=9"], "epoch"),
        (["--set", "stages=0"], "stages"),
        (["--set", "start=2.0"], "start"),
        (["--set", "schedule=sideways"], "sideways"),
        (["--set", "batch_rate=cubic"], "cubic"),
        (["--set", "freeze=('nothing',)"], "nothing"),
        (["--set", "optimizer=sdg"], "sdg"),
        (["--set", "model_options.num_classes=ten"], "num_classes"),
    ],
)
def test_bad_settings(more, says, capsys):
    status, out, err = run(capsys, "plan", *SMALL, *more)
    assert status == 2 and out == "" and says in err and "Traceback" not in err


def test_unknown_and_missing_recipes(capsys):
    status, _, err = run(capsys, "plan", "--recipe", "cifar10-resnet21")
    assert status == 2 and "there is no recipe" in err and "cifar10-resnet20" in err
    status, _, err = run(capsys, "plan")
    assert status == 2 and "give MODULE:FUNCTION with --input, or --recipe NAME." in err


# A user's own model.

READER = """\
from torch import nn

class Reader(nn.Module):
    def __init__(self, width=16, stages=1):
        super().__init__()
        self.embed, self.hidden = nn.Embedding(50, width), nn.Linear(width, stages * width)
        self.head = nn.Linear(stages * width, 3)

    def forward(self, tokens, mask=None):
        words = self.embed(tokens)
        words = words if mask is None else words * mask.unsqueeze(-1)
        return self.head(self.hidden(words.mean(1)).relu())

made = Reader()
"""


@pytest.fixture
def reader(tmp_path):
    path = tmp_path / "my_reader.py"
    path.write_text(READER)
    return path


def test_a_users_own_model(reader, capsys):
    inputs = ["--input", "tokens=2x8:int64", "--input", "mask=2x8"]
    settings = ["width=32", "model_options.stages=2", "stages=3", "epochs=6", "growth=none"]
    sets = [part for setting in settings for part in ("--set", setting)]
    status, out, err = run(capsys, "plan", f"{reader}:Reader", *inputs, *sets, "--json")
    assert (status, err) == (0, "")
    found = one_object(out)
    assert found["model"] == f"{reader}:Reader" and "recipe" not in found
    assert found["stages"] == 3 and sum(found["epochs"]) == 6
    assert found["widths"][-1] == {"embed": 32, "hidden": 64} and found["widths"][0]["embed"] == 8


def test_a_users_own_model_within_a_budget_as_text(reader, capsys):
    arguments = [f"{reader}:made", "--input", "2x8:int64", "--budget", "60%", "--set", "stages=4"]
    status, out, _ = run(capsys, "plan", *arguments)
    assert status == 0 and out.startswith("Plan: Reader in 4 stages")
    share = float(out.split("Training costs ")[1].split("%")[0])
    assert 30 < share <= 60


MODEL = ["READER:Reader", "--input", "2x8:int64"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["READER:Reader"], "needs an example of its inputs, such as --input 1x3x224x224"),
        (["READER:Readers", "--input", "2x8:int64"], "has no 'Readers'"),
        (["READER:Reader", "--input", "2x8"], "own forward pass fails"),
        (["READER:Reader", "--input", "2x8:int65"], "torch has no type 'int65'"),
        (["READER", "--input", "2x8"], "is not of the form module:function"),
        (["demo"], "'demo' is a recipe: --recipe demo."),
        ([*MODEL, "--recipe", "demo"], "or --recipe demo, not both"),
        (["--recipe", "demo", "--input", "1x3"], "--input is for a model of your own"),
        ([*MODEL, "--set", "stges=3"], "no such option; the nearest is 'stages'"),
        ([*MODEL, "--set", "model_options.depth=3"], "has no argument 'depth'"),
        ([*MODEL, "--set", "stages=1000000000"], "allowed is int or None from 1 to 1,000"),
        ([*MODEL, "--set", "stages=many"], "'stages' is int | None, not str"),
        ([*MODEL, "--set", "width=wide"], "failed: TypeError"),
        ([*MODEL, "--set", "epochs=1"], "no room for a growth in 1 epoch"),
        ([*MODEL, "--set", "build=x"], "write a recipe of your own"),
        ([*MODEL, "--set", "width"], "expected KEY=VALUE"),
        (["READER:made", "--input", "2x8:int64", "--set", "width=3"], "has no argument 'width'"),
        (["math:pi", "--input", "1x3", "--set", "stages=2"], "neither a model nor callable"),
    ],
)
def test_what_is_wrong_with_a_model(arguments, says, reader, capsys):
    arguments = [a.replace("READER", str(reader)) for a in arguments]
    status, out, err = run(capsys, "plan", *arguments)
    assert status == 2 and out == "" and says in err and "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_case(name, capsys):
    status, out, _ = run(capsys, "plan", "--recipe", name, "--json")
    found = one_object(out)
    assert status == 0 and 0 < found["flops_share"] < 1 and 0 < found["published_flops_share"] < 1
    assert len(found["widths"]) == len(found["epochs"]) == len(found["batch_sizes"]) == 9


def test_both_factors_of_heads(capsys):
    sizes = ["vocab_size=11", "block_size=8", "num_layers=1", "num_heads=4", "width=32"]
    asked = ["heads=both", "start=0.25", "stages=2"]
    settings = [word for setting in [*sizes, *asked] for word in ("--set", setting)]
    model = ["growthring.zoo:GPT", "--input", "2x8:int64"]
    status, out, err = run(capsys, "plan", *model, *settings, "--json")
    found = one_object(out)
    assert (status, err) == (0, "")
    name = "blocks.0.attention.qkv"
    assert found["roles"] == {name: "heads", f"{name}/2": "head size"}
    assert [(w[name], w[f"{name}/2"]) for w in found["widths"]] == [(2, 4), (4, 8)]
