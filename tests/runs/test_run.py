import json

import pytest

from growthring.runs.run import read_run
from tests.runs.samples import metrics, write_run


def test_a_half_written_last_line_is_ignored(tmp_path):
    run = write_run(tmp_path / "a", num_epochs=3)
    whole = read_run(run)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"kind": "epoch", "epoch": 4')
    assert read_run(run) == whole
    assert not whole.problems and not whole.finished


def test_a_damaged_line_is_skipped_and_told(tmp_path):
    run = write_run(tmp_path / "a", num_epochs=2)
    log = run / "metrics.jsonl"
    log.write_bytes(b"\xff\xfe{\n[1]\n7\n" + log.read_bytes())
    found = read_run(run)
    assert len(found.epochs) == 2
    assert found.problems == ["1 line is unreadable in metrics.jsonl."]


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "result.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\x00\xff", b"null", b"[" * 100_000])
def test_damaged_files(tmp_path, name, content):
    run = write_run(tmp_path / "a")
    (run / name).write_bytes(content)
    found = read_run(run)
    if name != "metrics.jsonl":
        assert len(found.problems) == 1 and name in found.problems[0]


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_missing_files(tmp_path, name):
    run = write_run(tmp_path / "a")
    (run / name).unlink()
    assert read_run(run).problems == [f"It has no {name}."]


def test_what_a_resumed_run_wrote_again_replaces_what_was_there(tmp_path):
    records = metrics(False, 0, num_epochs=10)
    again = [r for r in metrics(False, 1, num_epochs=12) if r["step"] > 3 * 40]
    run = read_run(write_run(tmp_path / "a", records=records + again))
    expected = read_run(write_run(tmp_path / "b", records=metrics(False, 1, num_epochs=12)))
    assert [e.number for e in run.epochs] == list(range(1, 13))
    assert run.epochs[3:] == expected.epochs[3:]
    assert run.growths == expected.growths
    assert run.rates == expected.rates


def test_epochs_may_be_counted_from_zero(tmp_path):
    records = metrics(False, 0, num_epochs=3)
    for record in records:
        if record["kind"] == "epoch":
            record["epoch"] -= 1
    run = read_run(write_run(tmp_path / "a", records=records))
    assert [e.number for e in run.epochs] == [1, 2, 3]
    first = {"kind": "epoch", "epoch": 0, "step": 0, "test_accuracy": 0.1}  # before training
    run = read_run(write_run(tmp_path / "b", records=[first, *metrics(False, 0, num_epochs=2)]))
    assert [e.number for e in run.epochs] == [0, 1, 2]


def test_values_that_are_no_numbers_are_missing(tmp_path):
    record = {"kind": "epoch", "epoch": 1, "train_loss": float("nan"), "test_loss": "NaN"}
    record |= {"test_accuracy": True, "seconds": None, "flops": 10**400, "flops_share": [1]}
    run = read_run(write_run(tmp_path / "a", records=[record]))
    (epoch,) = run.epochs
    values = (epoch.train_loss, epoch.test_loss, epoch.test_accuracy, epoch.seconds, epoch.flops)
    assert values == (None,) * 5 and epoch.flops_share is None
    assert json.loads((run.path / "config.json").read_text())["name"] == run.name
