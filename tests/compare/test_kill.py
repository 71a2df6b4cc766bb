"""A comparison that is killed goes on, and several processes share one."""

import os
import signal

import pytest

from growthring.compare.contenders import MATCHED
from growthring.compare.manifest import manifest_lock, read_manifest
from growthring.planning.lengths import Length
from growthring.train import Interrupted
from tests.compare.comparisons import Titles, compare, counted_clocks, snapshot
from tests.train.runs import in_child, kill_self

CONTENDERS = ("vt", "paired")


@pytest.fixture(autouse=True)
def clocks(monkeypatch):
    counted_clocks(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        counted_clocks(patch)
        compare(out, CONTENDERS, 2).run()
    return out


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("fixed, seed 0", marks=pytest.mark.slow),
        pytest.param("vt, seed 1", marks=pytest.mark.slow),
        pytest.param("fixed-flops, seed 0", marks=pytest.mark.slow),
        pytest.param("paired, seed 0", marks=pytest.mark.slow),
    ],
)
def test_killed_and_gone_on(name, whole, tmp_path):
    out = tmp_path / "out"
    killed = in_child(lambda: compare(out, CONTENDERS, 2, progress=Titles(name, kill_self)).run())
    assert killed == -signal.SIGKILL
    before = {k: v for k, v in snapshot(out).items() if _finished(out, k)}
    decisions = read_manifest(out).decisions
    compare(out, CONTENDERS, 2).run()
    assert (out / "results.json").read_bytes() == (whole / "results.json").read_bytes()
    assert snapshot(out).items() >= before.items()  # what was finished was not touched
    assert read_manifest(out).decisions.items() >= decisions.items()
    assert bool(decisions) == (name not in ("fixed, seed 0", "paired, seed 0"))


def _finished(out, name):
    return (out / "/".join(name.split("/")[:2]) / "result.json").exists()


@pytest.mark.slow
def test_decisions_outlive_other_costs(tmp_path, monkeypatch):
    """The seconds of a run that is trained again after a kill may be others; its epochs are not."""
    out, kill = tmp_path / "out", Titles("fixed-seconds, seed 0", kill_self)
    in_child(lambda: compare(out, CONTENDERS, 1, progress=kill).run())
    decisions = read_manifest(out).decisions
    assert set(decisions) == set(MATCHED)
    monkeypatch.setattr(
        "growthring.compare.match.matched_length", lambda share, whole: Length(99, "epochs")
    )
    compare(out, CONTENDERS, 2).run()
    assert read_manifest(out).decisions == decisions


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_comparison_goes_on(whole, tmp_path):
    def interrupt():
        signal.raise_signal(signal.SIGINT)

    out = tmp_path / "out"
    with pytest.raises(Interrupted, match=r"stopped in vt, seed 0.*same command goes on"):
        compare(out, CONTENDERS, 2, progress=Titles("vt, seed 0", interrupt)).run()
    titles = Titles()
    compare(out, CONTENDERS, 2, progress=titles).run()
    assert "resuming at stage 1, step 4" in titles.said
    assert (out / "results.json").read_bytes() == (whole / "results.json").read_bytes()


def test_processes_do_not_lose_each_others_entries(tmp_path):
    """Many at once, each with a contender of its own: all are in the manifest."""
    names = ("vt", "ra", "paper", "growing", "max")
    children = []
    for name in names:
        pid = os.fork()
        if pid == 0:
            comparison = compare(tmp_path, ["paired", name])
            comparison._check = lambda: os._exit(0)  # the manifest is written by now
            comparison.run()
            os._exit(1)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 5
    assert set(read_manifest(tmp_path).contenders) == {"fixed", "paired", *names}


def test_a_killed_process_does_not_keep_the_manifest(tmp_path):
    def work():
        with manifest_lock(tmp_path):
            kill_self()

    assert in_child(work) == -signal.SIGKILL
    with manifest_lock(tmp_path):
        pass
