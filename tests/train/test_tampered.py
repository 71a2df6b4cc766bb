"""Runs that somebody has changed: config.json field by field, metrics, checkpoints; and data that does not fit."""

import errno
import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from growthring.checkpoint import (
    CheckpointError,
    read_checkpoint,
    write_checkpoint,
)
from growthring.data.stream import BatchStream
from growthring.errors import GrowthError, InputError
from growthring.runs import RunFolder
from growthring.train import Interrupted, Silence, Trainer, TrainingError, how_to_resume
from growthring.train.config import read_config
from growthring.train.interrupt import Interrupt
from growthring.train.saved import open_run
from tests.train.nets import normed, plain
from tests.train.runs import Killer, assert_same_run, in_child, small
from tests.train.test_resume import Notes, Stop, press, stop


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped after seven steps; nobody changes this one."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stop):
        Trainer(small(), folder, checkpoint_steps=1, progress=Killer(7, stop)).fit()
    return folder


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """One that can try to resume any copy of that run."""
    return Trainer(small(), tmp_path_factory.mktemp("unused") / "run", progress=Silence())


@pytest.fixture
def run(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def contents(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "lock")
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def refused(trainer, run, *parts, error=GrowthError):
    """Resuming says all this, and leaves every file as it was."""
    before = contents(run)
    trainer.folder = RunFolder(run)
    with pytest.raises(error) as caught:
        trainer.resume()
    text = str(caught.value)
    assert all(part in text for part in parts), text
    assert contents(run) == before
    return text


def put(run: Path, path: str, value: object) -> None:
    """Sets a field of config.json, such as settings.lr; `...` deletes it."""
    config = json.loads((run / "config.json").read_text())
    *parents, last = path.split(".")
    place = config
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    (run / "config.json").write_text(json.dumps(config))


DEEP: list = []
for _ in range(500):
    DEEP = [DEEP]

FIELDS = [
    *((key, value) for key in ("settings", "source", "plan") for value in (None, [], 3, "x", ...)),
    *(("versions", value) for value in ([], 3, "x", {"torch": 3}, {"torch": None})),
    *(("name", value) for value in (3, None, [], {})),
    *(("machine", value) for value in (3, [])),
    *(("fixed", value) for value in (0, "true", None)),
    *(("seed", value) for value in (-1, 1.5, "0", True, 2**70, None)),
    *(
        ("settings.epochs", value)
        for value in (0, -3, 10**18, 2.5, "3", None, True, [3], float("nan"))
    ),
    *(("settings.batch_size", value) for value in (0, -1, 10**9, 1e9, "32", {})),
    *(("settings.stages", value) for value in (0, -1, 10**9, "3")),
    *(
        ("settings.input_shape", value)
        for value in (3, "x", [0, 8, 8], [-1, 8, 8], [99999] * 3, [1.0])
    ),
    *(("settings.lr", value) for value in ("fast", None, float("inf"), float("nan"), [])),
    *(("settings.num_train", value) for value in (0, -5, 10**15, "all")),
    *(("settings.side", value) for value in (0, 10**6, "8")),
    *(("settings.seed", value) for value in (-1, 2**64)),
    *(("settings.freeze", value) for value in ("layer", [3], {})),
    *(("settings.optimizer_options", value) for value in (None, [], 3, "x")),
    *(("settings.model", value) for value in (None, 3, {})),
    *(("settings.fixed", value) for value in (1, "yes")),
    *(("settings.data", value) for value in (3, None)),
    *(("source.recipe", value) for value in (3, None, "", [], "a\0b", "x" * 20_000)),
    *(("source.settings", value) for value in (3, "epochs=3", [3], None)),
    *(("source.data", value) for value in (3, [], "a\0b", "", "\ud800", "a\nb")),
    *(("source.sha256", value) for value in (3, "abc", "G" * 64)),
    *(("source.fixed", value) for value in (1, "no")),
    *(("plan.stages", value) for value in (0, -1, 10**9, "3", 2.0)),
    *(
        ("plan.flops", value)
        for value in (..., None, 3, [], [1, 2], [1, 2, "x"], [1, 2, -1], [1, 2, float("nan")])
    ),
    *(("plan.parameters", value) for value in (..., [1, 2, 3.5], [1, 2, 2**70], [[1], 2, 3])),
    *(("plan.epochs", value) for value in ([1, 1], [1, 1, -1], "x", {})),
    *(("plan.full_flops", value) for value in ("x", -1, float("inf"), None)),
    *(("card", value) for value in (None, [], 3, "x")),
    *(("card.model", value) for value in (None, 3, ...)),
    *(("card.classes", value) for value in (3, [1])),
    *(("card.preprocessing.std", value) for value in (3, None, ["x"])),
    ("settings.lr", DEEP),
    ("unknown", 1),
    ("settings.unknown", 1),
    ("source.unknown", 1),
    ("\x1b[31mred", 1),
]


@pytest.mark.parametrize(("path", "value"), FIELDS, ids=lambda value: repr(value)[:30])
@pytest.mark.each(9)
def test_a_field_that_no_run_writes(path, value, trainer, run):
    source = {"recipe": "demo", "settings": [], "fixed": False, "data": None}
    put(run, "source", source)
    read_config(run)
    put(run, path, value)
    field = repr(path.split(".")[-1])[1:-1]
    text = refused(trainer, run, str(run / "config.json"), field, error=InputError)
    assert "allowed" in text or "allowed are" in text
    if (
        value is not ...
        and not isinstance(value, list | dict)
        and not path.endswith(("unknown", "red"))
    ):
        assert repr(value)[:40] in text


CHANGES = [  # of the right kind, but not what the run began with
    ("name", "other", "'name' was 'small' and is 'other'"),
    ("seed", 5, "'seed' was 0 and is 5"),
    ("machine", "elsewhere", "'machine' was"),
    ("settings.lr", 0.06, "'settings.lr' was 0.05 and is 0.06"),
    ("settings.epochs", 4, "'settings.epochs' was 3 and is 4"),
    (
        "settings.optimizer_options",
        {"momentum": 0.5},
        "'settings.optimizer_options.momentum' was 0.9",
    ),
    ("plan.flops", [1.0, 2.0, 3.0], "'plan.flops[0]' was"),
    ("plan.parameters", [1, 2, 3], "'plan.parameters[0]' was"),
    ("plan.full_flops", 1.0, "'plan.full_flops' was"),
    ("plan.epochs", [1, 2, 3], "'plan.epochs[1]' was"),
    ("card.data", "cifar10", "'card.data' was 'digits' and is 'cifar10'"),
    ("versions", {"torch": "9.9", "python": "3"}, "'versions.torch' was"),
    ("source", {"recipe": "demo"}, "'source.recipe' was None and is 'demo'"),
]


@pytest.mark.parametrize(("path", "value", "says"), CHANGES, ids=[case[0] for case in CHANGES])
def test_a_field_that_was_something_else(path, value, says, trainer, run):
    put(run, path, value)
    refused(trainer, run, "was changed since the run began", says, error=InputError)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (b"[]", "a JSON object"),
        (b"3", "a JSON object"),
        (b"{" * 100_000, "is not JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deep"),
        (b'{"name": 1, "name": 2}', "is there twice"),
        (bytes(range(256)), "is not JSON"),
    ],
    ids=["empty", "list", "number", "braces", "deep", "twice", "binary"],
)
def test_a_config_that_is_none(content, says, trainer, run):
    (run / "config.json").write_bytes(content)
    refused(trainer, run, str(run / "config.json"), says)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_a_config_that_is_no_file(make, trainer, run):
    (run / "config.json").unlink()
    make(run / "config.json")
    trainer.folder = RunFolder(run)
    with pytest.raises(GrowthError, match=r"config\.json"):
        trainer.resume()


def test_other_versions_are_told(stopped, tmp_path):
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    put(run, "versions", {"torch": "1.0"})
    alter(run, lambda state: state["config"].update(versions={"torch": "1.0"}))
    notes = Notes()
    Trainer(small(), run, progress=notes).resume()
    assert any("began with torch 1.0" in line and "not bit for bit" in line for line in notes.said)


# The log.


def lines_of(run: Path) -> list[bytes]:
    return (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)


DAMAGE = {
    "cut in a line": lambda lines: b"".join(lines)[:-4],
    "last line gone": lambda lines: b"".join(lines[:-1]),
    "first line gone": lambda lines: b"".join(lines[1:]),
    "emptied": lambda lines: b"",
    "edited": lambda lines: b"".join(lines).replace(b'"epoch": 0', b'"epoch": 7'),
    "reordered": lambda lines: b"".join(reversed(lines)),
    "a line twice": lambda lines: lines[0] + b"".join(lines),
    "garbage": lambda lines: bytes(i % 251 for i in range(len(b"".join(lines)))),
    "deleted": None,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_log_stops_the_resume(damage, stopped, trainer, run, tmp_path):
    path = run / "metrics.jsonl"
    assert len(lines_of(run)) >= 2
    path.unlink() if damage is None else path.write_bytes(damage(lines_of(run)))
    refused(trainer, run, str(path), "Put the file back", "--forget-metrics", error=CheckpointError)


def test_with_the_log_put_back_it_goes_on_bit_for_bit(run, tmp_path):
    Trainer(small(), tmp_path / "whole", progress=Silence()).fit()
    kept = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(kept[:-5])
    again = Trainer(small(), run, progress=Silence())
    with pytest.raises(CheckpointError, match="was shortened: it has"):
        again.resume()
    (run / "metrics.jsonl").write_bytes(kept + b'{"kind": "epo')  # what a kill leaves is no damage
    again.resume()
    again.fit()
    assert_same_run(tmp_path / "whole", run)


def test_a_damaged_log_can_be_forgotten_but_is_kept(run):
    (run / "metrics.jsonl").write_bytes(b"garbage\n")
    again = Trainer(small(), run, progress=Silence())
    again.resume(forget_metrics=True)
    assert (run / "metrics.jsonl").read_bytes() == b"garbage\n"
    result = again.fit()
    assert (run / "metrics.damaged-1.jsonl").read_bytes() == b"garbage\n"
    assert result.epochs == 3 and b"garbage" not in (run / "metrics.jsonl").read_bytes()
    last = Trainer(small(), run, progress=Silence())
    last.resume()


# Checkpoints that are whole but wrong.


def alter(run: Path, change) -> None:
    found = read_checkpoint(run)
    change(found.state)
    shutil.rmtree(run / "checkpoints")
    write_checkpoint(run, found.state, found.step)


def remove(key):
    return lambda state: state.pop(key)


def total(**values):
    return lambda state: state["totals"].update(values)


STATES = {
    "no model": (remove("model"), "it has no 'model'"),
    "no totals": (remove("totals"), "it has no 'totals'"),
    "no random states": (remove("random"), "it has no 'random'"),
    "no position": (remove("metrics"), "does not say how far"),
    "a list": (lambda state: state.update(model=[1]), "'model' is a list"),
    "another model": (
        lambda state: state.update(model=normed().state_dict()),
        "does not fit this model",
    ),
    "a fixed-size run": (lambda state: state.update(grower=None), "does not fit this model"),
    "weights that are not finite": (
        lambda state: state["model"]["1.weight"].fill_(torch.nan),
        "'1.weight' is not finite",
    ),
    "a later stage": (total(stage=1), "which the plan with [1, 1, 1] epochs does not have"),
    "no such stage": (total(stage=99), "stage 99"),
    "another epoch": (total(epoch=77), "it is at epoch 77"),
    "another step": (total(step=99), "'totals.step' is 99, its folder says"),
    "a negative stage": (total(stage=-1), "'totals.stage' is -1"),
    "a text": (total(epoch="2"), "'totals.epoch' is '2'"),
    "seconds that are none": (total(seconds=float("nan")), "'totals.seconds' is nan"),
    "an unknown total": (total(bonus=3), "'totals' does not fit"),
    "other sums": (lambda state: state.update(sums=torch.zeros(2)), "'sums' is torch.float32"),
    "other random states": (lambda state: state.update(random=[torch.zeros(3)]), "does not fit"),
    "other numbers of Python": (
        lambda state: state.update(other_random={"python": (3, (1, 2), None)}),
        "there is no such state of random numbers",
    ),
    "no random state": (lambda state: state.update(random=[]), "does not fit"),
    "another optimizer": (
        lambda state: state["optimizer"].update(param_groups=[]),
        "step-00000000",
    ),
    "another position": (
        lambda state: state["train"].update(position=10**6),
        "the state is at example 1000000",
    ),
    "a batch of nothing": (lambda state: state["train"].update(batch_size=0), "batch_size=0"),
    "another growth": (lambda state: state["grower"].update(stage=0), "the growth is at stage 0"),
    "endless rings": (
        lambda state: next(iter(state["grower"]["rings"]["history"].values())).__setitem__(
            0, 2**31
        ),
        " was [2147483648, ",
    ),
    "no rings": (lambda state: state["grower"].update(rings=3), "does not fit this model"),
    "a momentum that is none": (
        lambda state: state["optimizer"].update(
            state={0: {"momentum_buffer": 3}, 1: {"momentum_buffer": torch.zeros(1)}}
        ),
        "'momentum_buffer' of parameter 0 is a int, of others a tensor",
    ),
    "another grower": (lambda state: state.update(grower={}), "the state lacks 'stage'"),
}


@pytest.mark.parametrize(("edit", "says"), STATES.values(), ids=STATES.keys())
@pytest.mark.each(2)
def test_a_whole_checkpoint_of_something_else(edit, says, trainer, run, tmp_path):
    alter(run, edit)
    # In a child, as a resume that fails late has changed the trainer.
    code = in_child(lambda: (tmp_path / "said").write_text(refused(trainer, run, says)))
    assert code == 0 and says in (tmp_path / "said").read_text()


def test_a_run_of_before_without_marks_can_be_resumed(trainer, run):
    """Checkpoints had a position only, and no config."""

    def old(state):
        state["metrics_position"] = state.pop("metrics")["size"]
        del state["config"]

    alter(run, old)
    open_run(run)
    os.truncate(run / "metrics.jsonl", 10)
    refused(trainer, run, "was shortened")


# Settings that would allocate or hang.


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("epochs=1000000000000000000", "allowed is int from 1 to 1,000,000,000"),
        ("batch_size=1000000000", "allowed is int from 1 to 10,000,000"),
        ("stages=1000000000", "allowed is int or None from 1 to 1,000"),
        ("input_shape=(99999,99999,99999)", "at most 1,000,000,000 numbers"),
        ("side=1000000", "side=1000000 cannot work"),
        ("num_train=-3", "num_train=-3 cannot work"),
        ("lr=1e999", "lr=inf cannot work: allowed is float, finite"),
        ("noise=1e999", "noise=inf cannot work"),
        ("seed=-1", "seed=-1 cannot work"),
    ],
)
def test_numbers_beyond_any_use(setting, says, tmp_path):
    with pytest.raises(InputError) as caught:
        Trainer(small(setting), tmp_path / "run", progress=Silence())
    assert says in str(caught.value) and not (tmp_path / "run").exists()


def test_a_setting_nested_too_deep_is_a_text():
    with pytest.raises(InputError, match="'epochs' is int, not str"):
        small("epochs=" + "(" * 50_000 + ")" * 50_000)


# Data that does not fit the model.


def npz(folder: Path, labels, images=None) -> Path:
    images = np.zeros((len(labels), 8, 8), np.uint8) if images is None else images
    images[..., 0] = np.arange(len(labels))[:, None] % 256
    path = folder / "mine.npz"
    np.savez(
        path,
        train_images=images,
        train_labels=labels,
        test_images=images[:4],
        test_labels=labels[:4],
    )
    return path


DATA = {
    "a label beyond the outputs": (
        [*range(10), 12] * 10,
        [],
        "'mine' has the label 12, but the model has 10 outputs",
    ),
    "a huge label": ([0, 1, 2**61] * 40, [], "has the label 2305843009213693952"),
    "one class": ([3] * 100, [], "all 96 training images of 'mine' have the label 3"),
    "the first are of one class": ([0] * 96 + [1, 2, 3], [], "have the label 0"),
    "fewer than num_train": ([0, 1, 2], [], "has 3 images"),
    "another shape": ([0, 1] * 50, ["input_shape=(3,8,8)"], "the recipe expects (3, 8, 8)"),
    "a model of another shape": ([0, 1] * 50, ["model_options.inputs=63"], "63"),
}


@pytest.mark.parametrize(("labels", "settings", "says"), DATA.values(), ids=DATA.keys())
def test_data_that_does_not_fit(labels, settings, says, tmp_path):
    path = npz(tmp_path, np.array(labels))
    recipe = small("data=npz", *settings)
    with pytest.raises(GrowthError) as caught:
        Trainer(recipe, tmp_path / "run", data=path, progress=Silence()).fit()
    assert says in str(caught.value) and not (tmp_path / "run").exists()


class Odd(BatchStream):
    """A user's own batches, of which one is odd."""

    def __init__(self, inputs, targets):
        super().__init__(len(inputs), 4, torch.Generator().manual_seed(0), False)
        self._data = inputs, targets

    def _preparing(self):
        import contextlib

        inputs, targets = self._data
        return contextlib.nullcontext(lambda at: lambda: (inputs[at], targets[at]))


def test_a_label_in_a_users_own_stream(tmp_path):
    targets = torch.arange(16) % 10
    targets[11] = 99
    train = Odd(torch.randn(16, 1, 8, 8), targets)
    trainer = Trainer(small(), tmp_path, model=plain, train=train, progress=Silence())
    with pytest.raises(TrainingError, match=r"Target 99 is out of bounds.* Labels count from 0"):
        trainer.fit()


def test_inputs_that_are_not_finite(tmp_path):
    inputs = torch.randn(16, 1, 8, 8)
    inputs[11] = torch.nan
    train = Odd(inputs, torch.arange(16) % 10)
    trainer = Trainer(small(), tmp_path, model=plain, train=train, progress=Silence())
    with pytest.raises(
        TrainingError, match="the inputs of that step are not finite: the data has NaN"
    ):
        trainer.fit()


class Empty(Odd):
    """Streams that promise examples and give none."""

    def _run(self, loop):
        return iter(())


def test_streams_that_give_nothing(tmp_path):
    data = torch.randn(16, 1, 8, 8), torch.arange(16) % 10
    trainer = Trainer(small(), tmp_path / "a", model=plain, train=Odd(*data), progress=Silence())
    trainer.train = Empty(*data)
    with pytest.raises(TrainingError, match="epoch 0 had no examples"):
        trainer.fit()
    trainer.test = Empty(*data)
    with pytest.raises(InputError, match="gave no batch to evaluate on"):
        trainer.evaluate()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"checkpoint_minutes": float("nan")}, "checkpoint_minutes=nan: it is 0 or more"),
        ({"checkpoint_minutes": -1.0}, "checkpoint_minutes=-1.0"),
        ({"source": {"recipe": "demo", "code": "x"}}, "source has 'code'; it may have recipe"),
    ],
)
def test_options_that_would_be_refused_later(options, says, tmp_path):
    with pytest.raises(InputError, match=says):
        Trainer(small(), tmp_path / "run", progress=Silence(), **options)


def test_outputs_that_are_no_classes(tmp_path):
    class Pair(torch.nn.Sequential):
        def forward(self, x):
            return {"logits": super().forward(x)}

    def model():
        return Pair(
            torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10)
        )

    with pytest.raises(InputError, match=r"the model returns a dict; the cross entropy needs"):
        Trainer(small(), tmp_path / "run", model=model, progress=Silence())
    assert not (tmp_path / "run").exists()


# Devices: everything goes where the model is.


class Traveller(torch.Tensor):
    """Remembers where it was sent."""

    sent: list[torch.device]

    def to(self, *args, **kwargs):
        self.sent.append(args[0])
        return self.as_subclass(torch.Tensor)


def test_batches_of_a_users_own_stream_follow_the_device(tmp_path):
    sent: list[torch.device] = []
    Traveller.sent = sent

    class Stream(Odd):
        def _preparing(self):
            import contextlib

            inputs, targets = (tensor.as_subclass(Traveller) for tensor in self._data)
            return contextlib.nullcontext(lambda at: lambda: (inputs[at], targets[at]))

    data = torch.randn(16, 1, 8, 8), torch.arange(16) % 10
    trainer = Trainer(small(), tmp_path, model=plain, train=Odd(*data), progress=Silence())
    trainer.train = trainer.test = Stream(*data)
    with trainer.folder.at_work():
        trainer._stretch(trainer._batches())
    assert len(sent) == 2 * 2 * 4 and set(sent) == {trainer.device}


@pytest.mark.parametrize("setting", ["fixed=true", "small=true"])
@pytest.mark.each(2)
def test_costs_are_counted_where_the_plan_is(setting, tmp_path):
    """The meta device stands in for an accelerator."""
    here = Trainer(small(setting), tmp_path / "a", progress=Silence())
    there = Trainer(small(setting), tmp_path / "b", device="meta", progress=Silence())
    assert {p.device.type for p in there.model.parameters()} == {"meta"}
    assert here.account.costs == there.account.costs


def test_a_loss_with_weights_follows_the_device(tmp_path, monkeypatch):
    loss = torch.nn.CrossEntropyLoss(weight=torch.ones(10))
    moved = []
    monkeypatch.setattr(torch.nn.CrossEntropyLoss, "to", lambda self, device: moved.append(device))
    trainer = Trainer(small(), tmp_path, loss=loss, progress=Silence())
    assert moved == [trainer.device]


# Interrupts and disks.


def interrupted_in(monkeypatch, target, name, real):
    """Presses Ctrl-C when a function is called for the first time."""

    calls = []

    def pressed(*args, **kwargs):
        calls.append(1)
        if len(calls) == 1:  # a second one ends at once
            press()
        return real(*args, **kwargs)

    monkeypatch.setattr(target, name, pressed)


@pytest.mark.parametrize(
    "name", ["write_checkpoint", pytest.param("write_json", marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_ctrl_c_while_a_run_begins_leaves_one_that_can_be_resumed(name, monkeypatch, tmp_path):
    from growthring.runs import folder as module

    Trainer(small(), tmp_path / "whole", progress=Silence()).fit()
    with monkeypatch.context() as patch:
        interrupted_in(patch, module, name, getattr(module, name))
        with pytest.raises(Interrupted, match="after step 1;"):
            Trainer(small(), tmp_path / "run", progress=Silence()).fit()
    again = Trainer(small(), tmp_path / "run", progress=Silence())
    again.resume()
    again.fit()
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("name", ["write_checkpoint", "write_json", "JsonLines"])
@pytest.mark.parametrize("is_there", [False, True], ids=["new folder", "the user's folder"])
@pytest.mark.each(6)
def test_what_does_not_become_a_run_leaves_nothing(name, is_there, monkeypatch, tmp_path):
    """Two Ctrl-C, or a full disk, before there is a config.json."""
    from growthring.runs import folder as module

    run = tmp_path / "run"
    if is_there:
        run.mkdir()
        (run / "notes.txt").write_text("mine")

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    trainer = Trainer(small(), run, progress=Silence())
    with monkeypatch.context() as patch:
        patch.setattr(module, name, fail)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
    assert [p.name for p in run.iterdir()] == ["notes.txt"] if is_there else not run.exists()
    assert Trainer(small(), run, progress=Silence()).fit().epochs == 3


def test_a_full_disk_at_the_first_checkpoint(monkeypatch, tmp_path):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    trainer = Trainer(small(), tmp_path / "run", progress=Silence())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            trainer.fit()
    assert not (tmp_path / "run").exists()


def test_ctrl_c_after_the_last_step_is_not_lost(monkeypatch, tmp_path):
    """A comparison would go on with its next run."""
    trainer = Trainer(small(), tmp_path, progress=Silence())
    total = trainer.total_steps
    trainer.progress = Killer(10**9, stop)
    real = trainer.evaluate

    def evaluate():
        if trainer.totals.step == total:
            press()
        return real()

    monkeypatch.setattr(trainer, "evaluate", evaluate)
    with pytest.raises(Interrupted, match="everything is saved"):
        trainer.fit()
    again = Trainer(small(), tmp_path, progress=Silence())
    again.resume()
    assert again.fit().epochs == 3


def test_the_handler_of_ctrl_c_is_put_back(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(lambda text: None):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_how_to_resume():
    assert how_to_resume("runs/a", {}) == "Trainer.resume(), then fit()"
    assert how_to_resume("runs/a", {"recipe": "demo"}) == "growthring train --resume runs/a"
    command = how_to_resume("my runs/a", {"recipe": "/home/me/my file.py:mine"})
    assert command == "growthring train --resume 'my runs/a' --recipe '/home/me/my file.py:mine'"
