"""Trainer on the user's own data: loaders and data sets of any shapes, resumed, refused, finished."""

import shutil
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from growthring.checkpoint import read_json
from growthring.errors import InputError
from growthring.train import Progress, Recipe, Silence, Trainer, TrainingError
from tests.train.nets import plain
from tests.train.runs import Killer, Runs, assert_same_run, every, kill_self, metrics
from tests.train.test_resume import Notes, Stop, stop

SOURCE = torch.Generator().manual_seed(3)
X = torch.randn(40, 6, generator=SOURCE)
TABLE = TensorDataset(X, X @ torch.randn(6, 2, generator=SOURCE))
TOKENS = torch.randint(20, (40, 5), generator=SOURCE)
LENGTHS = torch.randint(1, 6, (40,), generator=SOURCE)


class Texts(Dataset):
    """Tokens and which of them count, by name; the class is whether the first token is a large one."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        mask = torch.arange(5) < LENGTHS[index]
        return {"tokens": TOKENS[index], "mask": mask}, int(TOKENS[index, 0] > 9)


class Reader(nn.Module):
    """Means of embeddings; takes its inputs by name."""

    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.hidden = nn.Linear(width, width)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens, mask):
        words = self.embed(tokens) * mask.unsqueeze(-1)
        return self.head(self.drop(self.hidden(words.mean(1)).relu()))


class TwoInputs(nn.Module):
    """Two tables in, two numbers by name out."""

    def __init__(self, width=8):
        super().__init__()
        self.left, self.right = nn.Linear(6, width), nn.Linear(2, width)
        self.head = nn.Linear(width, 2)

    def forward(self, left, right):
        return {"both": self.head((self.left(left) + self.right(right)).relu())}


def recipe(**settings):
    tiny = {"stages": 3, "epochs": 3, "growth": None, "lr": 0.05}
    return Recipe("own", plain, **tiny | settings)


def table():
    return plain(8, 6, 2, dropout=0.1)


def seeded():
    return torch.Generator().manual_seed(11)


MSE = {"model": table, "loss": nn.functional.mse_loss}
CASES = {
    "a table": lambda: {"train": DataLoader(TABLE, 16, shuffle=True), "test": TABLE, **MSE},
    "a table with a generator": lambda: {
        "train": DataLoader(TABLE, 16, shuffle=True, generator=seeded()),
        "test": DataLoader(TABLE, 16, shuffle=True, generator=seeded()),
        **MSE,
    },
    "a data set": lambda: {"train": TABLE, **MSE},
    "a list": lambda: {"train": [TABLE[:16], TABLE[16:32], TABLE[32:]], "test": [TABLE[:]], **MSE},
    "texts": lambda: {
        "train": DataLoader(Texts(), 16, shuffle=True),
        "test": Texts(),
        "model": Reader,
    },
}


def trainer(folder, case, progress=None, settings=None, **options):
    settings = {"batch_size": 16} if settings is None else settings
    return Trainer(
        recipe(**settings), folder, progress=progress or Silence(), **CASES[case]() | options
    )


SLOW = ("a table with a generator", "a list")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] if c in SLOW else []) for c in CASES]
)
@pytest.mark.each(3)
def test_killed_anywhere_and_resumed_bit_for_bit(case, tmp_path):
    runs = Runs(recipe(batch_size=16), **CASES[case]())

    def put(at):
        def before(one):
            torch.manual_seed(at)  # another process has drawn other numbers
            one._cadence = (2, 600.0, 3)
            one.progress = Silence() if at is None else Killer(at, kill_self)

        return before

    assert runs.start(tmp_path / "whole", lambda one: None) == 0
    for at in (
        3,
        4,
        8,
    ):  # from within an epoch, from the end of a stage, from within the last stage
        assert runs.start(tmp_path / "run", put(at)) == -signal.SIGKILL
    assert runs.start(tmp_path / "run", every(2)) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    assert read_json(tmp_path / "run" / "result.json")["steps"] == 9


def test_a_regression_shows_its_loss_only(tmp_path, capsys):
    result = trainer(tmp_path, "a table", Progress()).fit()
    assert result.test_accuracy is None and str(result).startswith("test loss ")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all("  test loss " in line for line in lines)
    assert not any("accuracy" in line for line in lines)
    epochs = [line for line in metrics(tmp_path) if line["kind"] == "epoch"]
    assert [line["train_accuracy"] for line in epochs] == [None] * 3
    planned = read_json(tmp_path / "config.json")["plan"]["flops_share"]
    assert result.flops_share == pytest.approx(planned)


def test_classes_of_texts_have_an_accuracy(tmp_path):
    result = trainer(tmp_path, "texts").fit()
    assert 0 <= result.test_accuracy <= 1


def test_several_inputs_and_targets_of_any_structure(tmp_path):
    data = [(TABLE[i : i + 8], {"y": TABLE[i : i + 8][1]}) for i in range(0, 40, 8)]
    result = Trainer(
        recipe(),
        tmp_path,
        model=TwoInputs,
        train=data,
        test=data,
        loss=lambda outputs, targets: (outputs["both"] - targets["y"]).square().mean(),
        progress=Silence(),
    ).fit()
    assert result.steps == 15 and result.test_accuracy is None
    assert result.flops_share < 1


@pytest.mark.slow
def test_the_loaders_batch_size_is_the_runs(tmp_path):
    one = trainer(tmp_path, "a table", settings={})
    assert one.recipe.batch_size == 16 and one.plan.batch_sizes == (16, 16, 16)
    one.fit()
    assert read_json(tmp_path / "config.json")["settings"]["batch_size"] == 16
    other = trainer(tmp_path, "a table", settings={}, train=DataLoader(TABLE, 8))
    with pytest.raises(InputError, match=r"other settings.*batch_size: 16 -> 8"):
        other.resume()


def test_batch_sizes_that_change_need_a_data_set(tmp_path):
    settings = {"batch_growth": 0.5, "batch_size": 8}
    with pytest.raises(InputError, match=r"batch_growth=0\.5 asks for .* Pass the data set itself"):
        trainer(tmp_path, "a table", settings=settings)
    with pytest.raises(InputError, match=r"batch_memory=1000000.0 asks for .* \(16 examples\)"):
        trainer(tmp_path, "a table", settings={"batch_memory": 1e6})
    trainer(tmp_path, "a data set", settings=settings).fit()
    epochs = [line for line in metrics(tmp_path) if line["kind"] == "epoch"]
    assert [line["batch_size"] for line in epochs] == [18, 12, 8]


class Hidden(IterableDataset):
    """Draws its order from a generator that nobody sees."""

    def __init__(self):
        self._hidden = torch.Generator().manual_seed(0)

    def __len__(self):
        return 40

    def __iter__(self):
        order = torch.randperm(40, generator=self._hidden)
        return iter([TABLE[i] for i in order.tolist()])


@pytest.mark.slow
def test_a_loader_that_cannot_be_put_back_says_so_and_goes_on(tmp_path):
    settings = {"train": DataLoader(Hidden(), 16)}
    notes = Notes()
    with pytest.raises(Stop):
        one = trainer(tmp_path, "a table", Killer(5, stop), checkpoint_steps=1, **settings)
        one.progress.say = notes.say
        one.fit()
    (said,) = notes.said
    assert "note: a resumed run may not go on bit for bit" in said and "Hidden" in said
    again = Notes()
    resumed = trainer(tmp_path, "a table", again, train=DataLoader(Hidden(), 16))
    resumed.resume()
    assert resumed.fit().steps == 9
    assert again.said[0] == "resuming at stage 1, step 4" and again.said[1] == said


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, trainer(folder, "a table").fit()


@pytest.fixture
def finished(whole, tmp_path):
    return Path(shutil.copytree(whole[0], tmp_path / "run"))


def test_a_finished_run_says_so_and_is_not_trained_again(whole, finished):
    before = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    notes = Notes()
    again = trainer(finished, "a table", notes)
    again.resume()
    assert again.fit() == whole[1]
    assert {p: p.read_bytes() for p in before} == before
    (said,) = notes.said
    assert said.startswith(f"'{finished}' is finished: test loss ") and "Nothing is left" in said
    assert said.endswith(f"the weights are in '{finished / 'model.safetensors'}'.")


def test_a_run_that_was_stopped_before_its_result(whole, finished):
    """Killed after its last step, or the result is of an older version, or its weights were deleted."""
    notes = Notes()
    again = trainer(finished, "a table", notes)
    result, weights = finished / "result.json", finished / "model.safetensors"
    for damage in (result.unlink, lambda: result.write_text('{"test_loss": 1.0}'), weights.unlink):
        damage()
        again.resume()
        assert again.fit().test_loss == whole[1].test_loss
        assert notes.said.pop() == "resuming after the last stage, step 9" and not notes.said
        assert weights.exists() and read_json(result)["steps"] == 9


REFUSED = {
    "numbers for classes": (
        {"train": DataLoader(TABLE, 16), "loss": None},
        r"targets that are torch.float32 of shape \(2, 2\), .* no shares of classes.*Trainer\(loss",
    ),
    "one number": (
        {"train": DataLoader(TensorDataset(X, X[:, :1])), "loss": None},
        r"does not fit outputs of shape \(1, 2\) and targets that are torch.float32 of shape \(1, 1\)",
    ),
    "labels of another type": (
        {"train": TensorDataset(X, torch.ones(40, dtype=torch.int32)), "loss": None},
        r"targets that are torch.int32 of shape \(2,\), as .* \(torch.int64\)",
    ),
    "a label too many": (
        {"train": TensorDataset(X, torch.full((40,), 7)), "loss": None},
        "Target 7 is out of bounds",
    ),
    "inputs of another width": ({"train": TensorDataset(X[:, :5], X)}, "own forward pass fails"),
    "a model that is made": ({"model": table()}, r"a Sequential that is made already; .* lambda"),
    "a loop": (
        {"train": iter([TABLE[:]])},
        "train is a list_iterator, which can be gone over only",
    ),
    "test data of another kind": ({"test": [X]}, r"test gives a Tensor where \(inputs, targets\)"),
}


@pytest.mark.parametrize(("options", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_before_the_run_begins(options, says, tmp_path):
    with pytest.raises(InputError, match=says):
        trainer(tmp_path / "run", "a table", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_loss_that_is_no_number(tmp_path):
    with pytest.raises(TrainingError, match=r"returned a tensor of shape \(16, 2\); needed is one"):
        trainer(tmp_path / "many", "a table", loss=nn.MSELoss(reduction="none")).fit()
    with pytest.raises(TrainingError, match=r"returned 0\.5; needed is one number as a tensor"):
        trainer(tmp_path / "float", "a table", loss=lambda outputs, targets: 0.5).fit()


def test_inputs_that_are_not_finite_are_named(tmp_path):
    broken = [({"tokens": TOKENS, "mask": torch.full((40, 5), torch.nan)}, torch.zeros(40).long())]
    data = {"train": broken, "model": Reader, "loss": nn.functional.cross_entropy, "test": None}
    with pytest.raises(TrainingError, match="inputs of that step are not finite: the data has NaN"):
        trainer(tmp_path, "texts", settings={"fixed": True}, **data).fit()


@pytest.mark.slow
def test_a_method_that_searches_on_a_loader(tmp_path):
    """The search goes over the loader and leaves the order of training as it was."""
    seen = {}
    for method, options in (("random", {}), ("gradmax", {"examples": 16})):
        targets = seen.setdefault(method, [])

        def loss(outputs, wanted, targets=targets):
            if torch.is_grad_enabled() and len(wanted) > 2:
                targets.append(wanted)
            return nn.functional.mse_loss(outputs, wanted)

        settings = {"method": method, "method_options": options, "batch_size": 16}
        trainer(
            tmp_path / method,
            "a table with a generator",
            settings=settings | {"variance_transfer": "paper"},
            loss=loss,
        ).fit()
    searched = [t for t in seen["gradmax"] if any(t.equal(u) for u in seen["random"])]
    assert len(seen["random"]) == 9 and len(searched) >= 9
