"""growthring compare: from one command to a table, and what it says when it cannot."""

import signal

import pytest

from growthring.checkpoint import RunLock, read_json
from growthring.compare import KNOWN
from growthring.compare.contenders import MATCHED
from tests.cli.commands import HANGS, OWN, Gate, lines_of, one_object, run, start

FILES = {"comparison.json", "table.md", "results.json", "accuracy-cost.svg", "report.html"}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "my_recipes.py"
    path.write_text(OWN)
    return path


@pytest.fixture
def arguments(own, tmp_path):
    return ["compare", "--recipe", f"{own}:mine", "--out", tmp_path / "out"]


def test_a_table_files_and_progress(arguments, capsys, tmp_path):
    more = ["--methods", "paired", "--variant", "noisy:noise=0.1,lr=0.02", "--seeds", "1"]
    status, out, err = run(capsys, *arguments, *more)
    assert status == 0, err
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:8]] == ["fixed", *MATCHED, "paired", "noisy"]
    assert "rounded up" in out and "wrote" in lines[-1]
    assert "run 7 of 7: noisy, seed 0" in err and "test accuracy" in err
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_file()} == FILES
    settings = read_json(tmp_path / "out" / "noisy" / "seed-0" / "config.json")["settings"]
    assert (settings["noise"], settings["lr"]) == (0.1, 0.02)
    status, table, err = run(capsys, "compare", "--table", "--out", tmp_path / "out")
    assert (status, table, err) == (0, out, "")


@pytest.mark.slow
def test_json_is_all_there_is(arguments, capsys, tmp_path):
    more = ["--methods", "vt", "--seeds", "1", "--set", "lr=0.02", "--clock", "cpu"]
    status, out, err = run(capsys, *arguments, *more, "--json", "--quiet")
    found = one_object(out)
    assert (status, err) == (0, "") and found == read_json(tmp_path / "out" / "results.json")
    assert found["changes"] == ["lr=0.02"] and found["settings"]["lr"] == 0.02
    assert found["clock"] == "cpu" and found["match"] == "vt"
    assert found["rows"][0]["name"] == "fixed"


def test_list_explains_the_contenders(capsys):
    status, out, _ = run(capsys, "compare", "--list")
    assert status == 0 and [line.split()[0] for line in out.splitlines()] == list(KNOWN)


@pytest.mark.slow  # in this process: tests/compare/test_kill.py; of one run: test_train.py
def test_ctrl_c_then_the_same_command_or_train_goes_on(arguments, capsys, tmp_path):
    more = ["--methods", "paired", "--seeds", "1"]
    folder = tmp_path / "out" / "paired" / "seed-0"
    with Gate(folder, 3, *arguments, *more, "--checkpoint-minutes", "0") as gate:
        gate.wait()
        gate.process.send_signal(signal.SIGINT)
        gate.open()
        _, err = gate.process.communicate(timeout=HANGS)
        assert gate.process.returncode == 130 and "Traceback" not in err
    assert "stopped in paired, seed 0" in err and "same command goes on" in err
    assert not (folder / "result.json").exists()
    status, _, err = run(capsys, "train", "--resume", folder, "--trust")
    assert status == 0 and "resuming at stage" in err
    status, out, err = run(capsys, *arguments, *more)
    assert status == 0 and "2 of 6 runs are there already" in err
    assert "run 2 of" not in err and "run 3 of 6: fixed-flops" in err and "not finished" not in out


@pytest.mark.slow
def test_two_processes_share_the_work(arguments, capsys, tmp_path):
    more = ["--methods", "paired,vt,ra", "--seeds", "1", "--clock", "cpu"]
    with Gate(tmp_path / "out" / "*" / "seed-0", 0, *arguments, *more) as gate:
        gate.wait()  # in a run of its own, until the other one has begun another
        other, said = start(*arguments, *more), [[], []]
        for line in lines_of(other):
            if line.startswith("run ") and not any(one.startswith("run ") for one in said[1]):
                gate.open()
            said[1].append(line)
        said[0] = gate.process.communicate(timeout=HANGS)[1].splitlines()
        assert (gate.process.returncode, other.returncode) == (0, 0), said
    shares = [[line.strip() for line in text if line.startswith("run ")] for text in said]
    assert all(shares) and not set(shares[0]) & set(shares[1])
    status, out, err = run(capsys, *arguments, *more)  # what waited when the first one was done
    rest = [line for line in err.splitlines() if line.startswith("run ")]
    assert status == 0 and "not finished" not in err
    runs = [*shares[0], *shares[1], *rest]
    shared = sum(
        row["runs"][0].split("/")[0] != row["name"]
        for row in read_json(tmp_path / "out" / "results.json")["rows"]
    )
    assert len(runs) == len(set(runs)) == 8 - shared
    assert out.count("\n") > 6


def test_left_to_another_process(arguments, capsys, tmp_path):
    more = ["--methods", "paired", "--seeds", "1", "--quiet"]
    with RunLock(tmp_path / "out" / ".locks" / "paired-seed-0"):
        status, out, err = run(capsys, *arguments, *more)
    assert status == 0 and "'paired' is not finished" in out
    assert "not finished: 1 at work elsewhere, 4 waiting for the cost to match" in err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--methods", "paired,gradmx"], "there is no contender 'gradmx'. Known: fixed, small"),
        (["--methods", "vt,vt"], "given twice"),
        (["--methods", ","], "no contenders"),
        (["--seeds", "0"], "seeds=0"),
        (["--methods", "vt", "--match", "ra"], "--match ra: the contenders are vt"),
        (["--variant", "mine"], "expected NAME:KEY=VALUE"),
        (["--variant", "mine:"], "expected NAME:KEY=VALUE"),
        (["--methods", "vt", "--variant", "vt:lr=1.0"], "cannot be called 'vt'"),
        (["--methods", "vt", "--variant", "mine:epohcs=1"], "contender 'mine'"),
        (["--set", "seed=3"], "--set seed=3: --seeds"),
        (["--set", "fixed=true"], "--set fixed=true: --seeds, --methods"),
        (["--methods", "vt", "--device", "nonsense"], "nonsense"),
        (["--methods", "vt", "--set", "data=nope"], "there is no data set 'nope'"),
        (["--methods", "vt", "--keep", "0"], "keep=0"),
    ],
)
def test_bad_arguments_say_what_is_wrong(more, says, arguments, capsys, tmp_path):
    status, out, err = run(capsys, *arguments, *more)
    assert status == 2 and out == "" and "Traceback" not in err and says in err
    assert not list(tmp_path.glob("out/*/seed-*"))


def test_missing_arguments(capsys, tmp_path):
    for arguments, says in (
        (["--recipe", "demo"], "give --out"),
        (["--out", tmp_path], "give --recipe"),
        (["--table", "--out", tmp_path], "holds no comparison"),
        (["--table"], "give --out"),
    ):
        status, out, err = run(capsys, "compare", *arguments)
        assert status == 2 and out == "" and says in err
