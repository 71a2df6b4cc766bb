"""Resuming: interrupted by hand, damaged checkpoints, other settings, other processes."""

import os
import signal

import pytest
import torch

from growthring.checkpoint import (
    CheckpointError,
    RunLock,
    RunLockedError,
    list_checkpoints,
    load_weights,
)
from growthring.errors import InputError
from growthring.train import Interrupted, Progress, Silence, Trainer
from tests.train.nets import normed, plain, regression
from tests.train.runs import KINDS, Killer, assert_same_run, small


class Notes(Silence):
    def __init__(self):
        super().__init__()
        self.said = []

    def say(self, text):
        self.said.append(text)


class Stop(Exception):
    """What a test stops a run with."""


def stop():
    raise Stop


def press():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    Trainer(small(), folder, progress=Silence()).fit()
    return folder


def begun(folder, recipe=None, steps=1, at=5, act=stop, **options):
    """A run that was stopped in the middle."""
    trainer = Trainer(
        recipe or small(), folder, checkpoint_steps=steps, progress=Killer(at, act), **options
    )
    with pytest.raises((Stop, Interrupted)):
        trainer.fit()
    return folder


def go_on(folder, recipe=None, **options):
    notes = Notes()
    trainer = Trainer(recipe or small(), folder, progress=notes, **options)
    trainer.resume()
    trainer.fit()
    return notes.said


@pytest.mark.parametrize("kind", ["layer norm"])
def test_interrupted_by_hand_again_and_again(kind, tmp_path):
    recipe = KINDS[kind]()
    Trainer(recipe, tmp_path / "whole", progress=Silence()).fit()
    handler = signal.getsignal(signal.SIGINT)
    for at in (2, 7):
        trainer = Trainer(recipe, tmp_path / "run", progress=Killer(at, press))
        if at > 2:
            trainer.resume()
        with pytest.raises(Interrupted, match=f"after step {at};.*Trainer.resume"):
            trainer.fit()
        assert signal.getsignal(signal.SIGINT) is handler
        assert list_checkpoints(tmp_path / "run")[-1][0] == at
    go_on(tmp_path / "run", recipe)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(whole, tmp_path):
    def twice():
        press()
        press()

    trainer = Trainer(small(), tmp_path, checkpoint_steps=1, progress=Killer(4, twice))
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert list_checkpoints(tmp_path)[-1][0] == 3
    go_on(tmp_path)
    assert_same_run(whole, tmp_path)


@pytest.mark.slow
def test_a_trainer_that_was_interrupted_can_go_on_itself(whole, tmp_path):
    trainer = Trainer(small(), tmp_path, progress=Killer(4, press))
    with pytest.raises(Interrupted):
        trainer.fit()
    trainer.resume()
    trainer.fit()
    assert_same_run(whole, tmp_path)


@pytest.mark.parametrize(("file", "size"), [("tensors.safetensors", 0.5), ("state.json", 0)])
@pytest.mark.each(2)
def test_a_truncated_newest_checkpoint(file, size, whole, tmp_path):
    begun(tmp_path)
    step, path = list_checkpoints(tmp_path)[-1]
    damaged = path / file
    os.truncate(damaged, int(damaged.stat().st_size * size))
    said = go_on(tmp_path)
    assert any(path.name in line and "cannot be used" in line for line in said)
    assert any(f"step {step - 1}" in line for line in said)
    assert_same_run(whole, tmp_path)


def test_a_newest_checkpoint_that_was_altered(whole, tmp_path):
    begun(tmp_path)
    path = list_checkpoints(tmp_path)[-1][1] / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert any("cannot be used" in line for line in go_on(tmp_path))
    assert_same_run(whole, tmp_path)


def test_no_checkpoint_can_be_used(tmp_path):
    begun(tmp_path)
    for _, path in list_checkpoints(tmp_path):
        os.truncate(path / "tensors.safetensors", 10)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used"):
        go_on(tmp_path)


def test_other_settings_are_refused_with_the_difference(whole, tmp_path):
    begun(tmp_path)
    for setting, says in (
        ("lr=0.06", r"lr: 0\.05 -> 0\.06"),
        ("optimizer_options.momentum=0.8", "0.9.*->.*0.8"),
        ("fixed=true", "fixed: False -> True"),
    ):
        with pytest.raises(InputError, match=says):
            go_on(tmp_path, small(setting))
    with pytest.raises(InputError, match=r"nets\.plain.*->.*nets\.normed"):
        go_on(tmp_path, small(model=normed))
    go_on(tmp_path)
    assert_same_run(whole, tmp_path)


@pytest.mark.slow
def test_a_folder_that_holds_a_run_is_not_overwritten(whole, tmp_path):
    begun(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"}
    with pytest.raises(InputError, match=r"already holds a run.*resume"):
        Trainer(small(), tmp_path, progress=Silence()).fit()
    assert before == {p: p.read_bytes() for p in before}
    go_on(tmp_path)
    assert_same_run(whole, tmp_path)


@pytest.mark.slow
def test_a_second_one_on_the_same_run_is_refused(whole, tmp_path):
    begun(tmp_path)
    with RunLock(tmp_path), pytest.raises(RunLockedError, match="works on the run"):
        go_on(tmp_path)
    with RunLock(tmp_path), pytest.raises(RunLockedError, match="works on the run"):
        Trainer(small(), tmp_path, progress=Silence()).fit()
    go_on(tmp_path)
    assert_same_run(whole, tmp_path)


def test_a_finished_run_can_be_resumed_to_no_effect(whole, tmp_path):
    Trainer(small(), tmp_path, progress=Silence()).fit()
    go_on(tmp_path)
    assert_same_run(whole, tmp_path)


def test_resumed_with_another_cadence(whole, tmp_path):
    begun(tmp_path, steps=2)
    go_on(tmp_path, checkpoint_steps=3, checkpoint_minutes=0.0, keep=1)
    assert len(list_checkpoints(tmp_path)) == 1
    assert_same_run(whole, tmp_path)


@pytest.mark.slow
def test_the_users_own_model_draws_from_torchs_generator(tmp_path):
    """In the process that resumes, that generator is somewhere else."""

    def options(seed):
        torch.manual_seed(seed)
        return {
            "model": lambda: plain(8, 6, 2),
            "train": regression(torch.Generator().manual_seed(1)),
            "test": regression(None),
            "loss": torch.nn.functional.mse_loss,
        }

    Trainer(small(), tmp_path / "whole", progress=Silence(), **options(0)).fit()
    begun(tmp_path / "run", at=2, **options(0))
    go_on(tmp_path / "run", **options(1))
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_the_users_own_model_follows_the_seed(tmp_path):
    """deterministic by seed, whatever was drawn before."""

    def run(name, before):
        torch.manual_seed(before)
        Trainer(small(), tmp_path / name, model=plain, progress=Silence()).fit()
        return load_weights(tmp_path / name / "model.safetensors")

    first, second = run("first", 0), run("second", 1)
    assert all(first[name].equal(second[name]) for name in first)


def test_a_full_disk_stops_with_the_reason(monkeypatch, whole, tmp_path):
    import errno

    real, calls = os.fsync, []

    def fsync(descriptor):
        calls.append(1)
        if len(calls) > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(CheckpointError, match="No space left"):
            Trainer(small(), tmp_path, checkpoint_steps=1, progress=Silence()).fit()
    go_on(tmp_path)
    assert_same_run(whole, tmp_path)


def test_progress_on_no_terminal_says_how_it_goes(capsys, tmp_path):
    Trainer(small(), tmp_path, progress=Progress()).fit()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["stage", str(t), "epoch", str(t + 1)] for t in range(3)
    ]
    assert all("test accuracy" in line and "fixed-size FLOPs" in line for line in lines)
