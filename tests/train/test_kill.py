"""A run that is killed at any moment and resumed ends with the very weights of one that was not."""

import os
import signal

import pytest
import torch

import growthring.growing.stage as stage_module
from growthring.growing.grower import Grower
from tests.checkpoint.processes import on_call
from tests.train.runs import (
    KINDS,
    Killer,
    Runs,
    assert_same_run,
    assert_whole,
    every,
    kill_self,
)

KILLED = -signal.SIGKILL


def killed_after(step, steps):
    def put(trainer):
        every(steps)(trainer)
        trainer.progress = Killer(step, kill_self)

    return put


QUICK = {
    ("grown", 3),
    ("fixed", 1),
    ("adam", 3),
    ("own schedule", 1),
    ("growing batches", 3),
    ("layer norm", None),
    ("steps", 3),
    ("steps of growing batches", None),
    ("translation", 1),
    ("translation, steps", 3),
    ("language, steps", 1),
    ("classes", 3),
    ("classes, steps", 1),
}
CASES = [
    pytest.param(kind, steps, marks=() if (kind, steps) in QUICK else pytest.mark.slow)
    for kind in KINDS
    for steps in (1, 3, None)
]


@pytest.mark.parametrize(("kind", "steps"), CASES)
@pytest.mark.each(6)
def test_killed_after_steps_and_resumed(kind, steps, tmp_path):
    recipe = KINDS[kind]()
    runs = Runs(recipe, log_rates=2)
    assert runs.start(tmp_path / "whole") == 0
    for step in (2, 3, 4, 8):
        code = runs.start(tmp_path / "killed", killed_after(step, steps))
        assert code in (KILLED, 0)
        if code == 0:
            break
    if code:
        assert runs.start(tmp_path / "killed", every(steps)) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert_whole(tmp_path / "killed", recipe)


def kill_in(place, function, number=1):
    """Kills within the number-th call of a function that a growth calls: at its start or in its middle."""

    def put(trainer):
        every(1)(trainer)
        real, calls = getattr(place, function), []

        def killing(*args, **kwargs):
            calls.append(1)
            if len(calls) == number:
                kill_self()
            return real(*args, **kwargs)

        setattr(place, function, killing)

    return put


@pytest.mark.parametrize("kind", ["layer norm", "adam"])
@pytest.mark.each(2)
def test_killed_in_the_middle_of_a_growth(kind, tmp_path):
    recipe = KINDS[kind]()
    runs = Runs(recipe)
    assert runs.start(tmp_path / "whole") == 0
    optimizers = (stage_module, "grow_optimizers")
    for place in ((Grower, "grow", 1), (*optimizers, 1), (*optimizers, 2)):
        assert runs.start(tmp_path / "killed", kill_in(*place)) == KILLED
    assert runs.start(tmp_path / "killed") == 0
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert_whole(tmp_path / "killed", recipe)


def kill_on_call(folder, number):
    def put(trainer):
        every(2)(trainer)
        on_call(folder, number, kill_self)

    return put


def uses_of_files(runs, folder):
    """How often a whole run uses the file system."""
    reader, writer = os.pipe()

    def put(trainer):
        every(2)(trainer)
        count, real = on_call(folder, -1, kill_self), trainer._finish

        def finish():
            result = real()
            os.write(writer, str(count()).encode())
            return result

        trainer._finish = finish

    assert runs.start(folder, put) == 0
    number = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    return number


def killed_at(runs, tmp_path, numbers):
    for number in numbers:
        folder = tmp_path / f"killed-{number}"
        code = runs.start(folder, kill_on_call(folder, number))
        assert code == KILLED, number
        assert runs.start(folder) == 0, f"cannot be resumed after a kill at use {number} of files"
        assert_same_run(tmp_path / "whole", folder)


@pytest.mark.slow
def test_killed_in_the_middle_of_a_write(tmp_path):
    runs = Runs(KINDS["own schedule"]())
    total = uses_of_files(runs, tmp_path / "whole")
    chosen = torch.randperm(total, generator=torch.Generator().manual_seed(3))[:3] + 1
    killed_at(runs, tmp_path, chosen.tolist())


@pytest.mark.slow
def test_killed_before_the_first_checkpoint_is_whole(tmp_path):
    runs = Runs(KINDS["own schedule"]())
    assert runs.start(tmp_path / "whole") == 0
    killed_at(runs, tmp_path, range(5, 16, 4))


@pytest.mark.slow
def test_killed_at_every_use_of_the_file_system(tmp_path):
    runs = Runs(KINDS["layer norm"]())
    total = uses_of_files(runs, tmp_path / "whole")
    killed_at(runs, tmp_path, range(1, total))
