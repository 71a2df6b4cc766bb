"""JsonLines: whole lines only, whatever happens, and no line twice after a resume."""

import errno
import json
import math
import os
import random
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from growthring.checkpoint import CheckpointError, JsonLines, read_jsonl
from tests.checkpoint.processes import run_in_child


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_lines_are_there_at_once(path):
    with JsonLines(path) as log:
        log.append({"step": 1})
        assert path.read_bytes() == b'{"step": 1}\n'
        log.append({"text": "zwei\nZeilen ü"})
        assert list(log) == [{"step": 1}, {"text": "zwei\nZeilen ü"}]
    assert path.read_bytes().count(b"\n") == 2
    with JsonLines(path) as log:
        log.append([3])
    assert list(read_jsonl(path))[2:] == [[3]]


def test_numbers_that_json_lacks(path):
    row = {
        "a": math.nan,
        "b": [math.inf, -math.inf],
        "c": np.float32("nan"),
        "d": torch.tensor(1e400),
    }
    with JsonLines(path) as log:
        log.append(row | {"e": np.int64(3), "f": (1.5, None), "g": path.parent})
    text = path.read_text()
    strict = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert strict["b"] == ["Infinity", "-Infinity"] and strict["a"] == strict["c"] == "NaN"
    (back,) = read_jsonl(path)
    assert math.isnan(back["a"]) and back["b"] == [math.inf, -math.inf] and back["d"] == math.inf
    assert back["e"] == 3 and back["f"] == [1.5, None] and back["g"] == str(path.parent)


@given(
    rows=st.lists(
        st.dictionaries(st.text(), st.floats(allow_nan=False) | st.integers() | st.booleans())
    )
)
def test_rows_come_back(rows, tmp_path_factory):
    with JsonLines(tmp_path_factory.mktemp("log") / "a.jsonl") as log:
        for row in rows:
            log.append(row)
        assert list(log) == rows


def test_a_row_that_is_not_json_is_refused(path):
    with JsonLines(path) as log:
        log.append(1)
        with pytest.raises(CheckpointError, match=r"cannot write this as JSON: .*function"):
            log.append({"f": len})
        with pytest.raises(CheckpointError, match="cannot write this as JSON"):
            log.append({"t": torch.ones(2)})
        assert list(log) == [1]


@pytest.mark.parametrize("tail", [b'{"ste', b"\0" * 70_000, b"x" * 200_000, b'{"step": 9}'])
def test_a_cut_off_last_line_is_dropped(path, tail):
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n' + tail)
    assert list(read_jsonl(path)) == [{"step": 1}, {"step": 2}]  # reading changes nothing
    assert path.read_bytes().endswith(tail)
    with JsonLines(path) as log:
        assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
        log.append({"step": 3})
        assert [row["step"] for row in log] == [1, 2, 3]


def test_only_a_cut_off_line(path):
    path.write_bytes(b"{" * 100_000)
    with JsonLines(path) as log:
        assert log.position() == 0 and list(log) == []


def test_truncate(path):
    with JsonLines(path) as log:
        positions = []
        for step in range(5):
            positions.append(log.position())
            log.append({"step": step})
        log.truncate(positions[3])
        assert [row["step"] for row in log] == [0, 1, 2]
        log.truncate(positions[2] + 3)  # in the middle of a line
        assert [row["step"] for row in log] == [0, 1]
        log.truncate(10**6)  # someone has shortened it: there is nothing to bring back
        assert [row["step"] for row in log] == [0, 1] and log.position() == positions[2]
        log.append({"step": 2})
        assert [row["step"] for row in log] == [0, 1, 2]
        log.truncate(0)
        assert list(log) == []


def test_a_bad_line_is_named(path):
    path.write_bytes(b"1\nhello\n3\n")
    rows = read_jsonl(path)
    assert next(rows) == 1
    with pytest.raises(CheckpointError, match=r"line 2 of '.*metrics.jsonl' is not JSON"):
        next(rows)


def test_errors_of_the_system(tmp_path, path, monkeypatch):
    with pytest.raises(CheckpointError, match=r"cannot read '.*metrics.jsonl': No such file"):
        list(read_jsonl(path))
    with pytest.raises(CheckpointError, match=r"cannot write .*: Is a directory"):
        JsonLines(tmp_path)
    log = JsonLines(path)
    log.append({"step": 1})
    real = os.write
    calls = []

    def write(descriptor, data):  # a part of the line, then a full disk
        if calls:
            raise OSError(errno.ENOSPC, "No space left on device")
        calls.append(1)
        return real(descriptor, data[:4])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(CheckpointError, match=r"No space left on device \(.* MB free\)"):
        log.append({"step": 2})
    monkeypatch.undo()
    assert path.read_bytes() == b'{"step": 1}\n'
    log.append({"step": 2})
    log.close()
    log.close()
    with pytest.raises(CheckpointError, match=r"the log '.*' is closed"):
        log.append(1)
    assert len(list(log)) == 2


def test_killed_and_resumed_has_no_line_twice(path):
    """Each life starts from a position that the one before may have run past."""
    random_source = random.Random(0)
    position, step, total = 0, 0, 0
    for _ in range(12):

        def work(tell, position=position, step=step):
            with JsonLines(path) as log:
                log.truncate(position)
                for i in range(step, step + 10**6):
                    log.append({"step": i, "text": "x" * (i * 37 % 5000)})
                    tell()

        assert run_in_child(work, random_source.randint(0, 20)) == -signal.SIGKILL
        with JsonLines(path) as log:
            steps = [row["step"] for row in log]
            assert steps == list(range(len(steps)))
            total = max(total, len(steps))
            step = random_source.randint(0, len(steps))
            end = sum(len(line) for line in path.read_bytes().splitlines(keepends=True)[:step])
            position = end
    assert total > 10
