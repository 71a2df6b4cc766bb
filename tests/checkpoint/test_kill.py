"""kill -9 at any moment of a write leaves the newest checkpoint, or the one before, readable."""

import glob
import random
import shutil
import signal
import sys

import pytest
import torch

from growthring.checkpoint import list_checkpoints, read_checkpoint, write_checkpoint
from tests.checkpoint.processes import kill_self, on_call, run_in_child

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")


def state_of(step, size):
    return {"weight": torch.full((size,), float(step)), "optimizer": [{"step": step}] * 20}


def check(run):
    checkpoint = read_checkpoint(run)
    assert not checkpoint.skipped
    assert (checkpoint.state["weight"] == checkpoint.step).all()
    assert checkpoint.state["optimizer"][-1] == {"step": checkpoint.step}
    return checkpoint.step


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step"])
@pytest.mark.each(3)
def test_killed_at_every_call_to_the_file_system(again, keep, tmp_path):
    for step in (1, 2):
        write_checkpoint(tmp_path / "before", state_of(step, 100), step, keep=2)
    new = 2 if again else 3
    for number in range(1, 200):
        run = shutil.copytree(tmp_path / "before", tmp_path / str(number))

        def work(run=run, number=number):
            on_call(run, number, kill_self)
            write_checkpoint(run, state_of(new, 100), new, keep=keep)

        code = run_in_child(work)
        assert code in (0, -signal.SIGKILL)
        assert check(run) in (2, new)
        write_checkpoint(run, state_of(4, 100), 4, keep=1)  # and the next run goes on
        assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-000000004"]
        if code == 0:
            break
    assert number >= 12, "the kills did not hit the write"


def goes_on(run, last):
    write_checkpoint(run, state_of(last + 1, 300_000), last + 1, keep=2)
    assert [step for step, _ in list_checkpoints(run)][-1] == last + 1
    assert len(list((run / "checkpoints").iterdir())) == 2


def test_killed_at_any_time(tmp_path):
    """While it writes one checkpoint after the other, some time after a chosen number of them."""
    random_source = random.Random(0)
    write_checkpoint(tmp_path, state_of(0, 300_000), 0)
    last = 0
    for _ in range(12):

        def work(tell, first=last + 1):
            for step in range(first, first + 1000):
                write_checkpoint(tmp_path, state_of(step, 300_000), step, keep=2)
                tell()

        written = random_source.randint(0, 3)
        assert run_in_child(work, written) == -signal.SIGKILL
        step = check(tmp_path)
        assert step >= last + written
        last = step
    assert last > 2
    goes_on(tmp_path, last)


def test_killed_inside_safetensors(tmp_path):
    """Whose use of files the tests above do not see: the system ends whoever makes a file too large."""
    resource = pytest.importorskip("resource")
    for step in (0, 1):
        write_checkpoint(tmp_path, state_of(step, 300_000), step, keep=2)

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
        write_checkpoint(tmp_path, state_of(2, 300_000), 2, keep=2)

    assert run_in_child(work) == -signal.SIGXFSZ
    assert glob.glob(f"{tmp_path}/checkpoints/.writing-*/.tmp*"), "the kill did not hit safetensors"
    assert check(tmp_path) == 1
    goes_on(tmp_path, 1)
