"""Run folders from strangers: special files, links that lead out, tensors that claim what is not there."""

import json
import os
import shutil
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch

from growthring.checkpoint import (
    CheckpointError,
    JsonLines,
    Mark,
    RunLock,
    load_weights,
    mark_of,
    read_checkpoint,
    read_json,
    read_jsonl,
    write_checkpoint,
)
from growthring.checkpoint.jsontext import MOST
from growthring.checkpoint.write import seal

STATE = {"weight": torch.arange(6.0), "rate": 0.1}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    write_checkpoint(folder, STATE, 7)
    return folder


def newest(run: Path) -> Path:
    return run / "checkpoints" / "step-000000007"


def says(call, *parts):
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as caught:
            call()
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert all(part in text for part in parts), text


# Tensors.


def safetensors(header: object, data: bytes = bytes(24), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(**changes) -> dict:
    return {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changes}


FILES = {
    "a header of 2**60 bytes": safetensors(one(), length=2**60),
    "a header of 2**64 - 1 bytes": safetensors(one(), length=2**64 - 1),
    "a header longer than the file": safetensors(one(), length=10_000),
    "offsets beyond the file": safetensors(one(shape=[2**40], data_offsets=[0, 2**42])),
    "offsets that wrap": safetensors(one(shape=[2**62, 2**62], data_offsets=[0, 24])),
    "offsets backwards": safetensors(one(data_offsets=[24, 0])),
    "negative offsets": safetensors(one(data_offsets=[-24, 0])),
    "negative shape": safetensors(one(shape=[-2, -3])),
    "another shape": safetensors(one(shape=[2, 4])),
    "an unknown type": safetensors(one(dtype="F12")),
    "a type that is no text": safetensors(one(dtype=3)),
    "overlapping tensors": safetensors(one() | {"b": one()["a"]}),
    "a gap": safetensors(one(shape=[2, 2], data_offsets=[8, 24])),
    "extra bytes": safetensors(one(), bytes(25)),
    "too few bytes": safetensors(one(), bytes(23)),
    "nested too deep": safetensors(b"[" * 100_000 + b"]" * 100_000),
    "no JSON": safetensors(b"{'a': 1}"),
    "a list": safetensors([]),
    "metadata that is no text": safetensors(one() | {"__metadata__": {"a": 3}}),
    "empty": b"",
    "seven bytes": bytes(7),
    "a pickle": b"\x80\x02cos\nsystem\n(U\x04exittR.",
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES.keys())
def test_tensors(content, run, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    says(lambda: load_weights(path), str(path), "safetensors")
    shutil.copy(path, newest(run) / "tensors.safetensors")
    reseal(run, tensors=entry(content))
    says(lambda: read_checkpoint(run), "step-000000007", "safetensors")


def entry(content: bytes) -> dict:
    import zlib

    return {
        "file": "tensors.safetensors",
        "size": len(content),
        "crc32": f"{zlib.crc32(content):08x}",
    }


def reseal(run: Path, **fields) -> None:
    """A state.json with other contents and a checksum that fits."""
    path = newest(run) / "state.json"
    document = json.loads(path.read_text())
    del document["crc32"]
    path.write_bytes(seal(document | fields))


# Trees.


TREES = {
    "much out of little": {"tensor": "weight", "shape": [10**12], "stride": [0]},
    "an array of much": {
        "array": {"tensor": "weight", "shape": [10**12], "stride": [0]},
        "dtype": "<f4",
        "shape": [10**12],
    },
    "beyond the tensor": {"tensor": "weight", "shape": [6], "stride": [10**9]},
    "negative strides": {"tensor": "weight", "shape": [6], "stride": [-1]},
    "another type": {"tensor": "weight", "dtype": "nothing", "shape": [6], "stride": [1]},
    "not a type": {"tensor": "weight", "dtype": "load", "shape": [6], "stride": [1]},
    "another tensor": {"tensor": "../../etc/passwd"},
    "a list as its name": {"tensor": []},
    "python objects": {"scalar": "|O", "bytes": "00" * 8},
    "a long scalar": {"scalar": "S1000000000", "bytes": "00"},
    "an unknown tag": {"exec": "import os"},
    "keys that cannot be": {"items": [[[1], 2]]},
    "no pairs": {"items": [1]},
    "no device": {"device": "nowhere"},
    "no number": {"int": "zz"},
    "no float": {"float": "00"},
    "no bytes": {"bytes": "?"},
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_trees(tree, run):
    reseal(run, tree={"dict": {"weight": {"tensor": "weight"}, "odd": tree}})
    says(lambda: read_checkpoint(run), "step-000000007: ")


@pytest.mark.parametrize(
    "fields",
    [
        {"tensors": None},
        {"tensors": []},
        {"tensors": {"size": "many", "crc32": "0"}},
        {"tensors": {"size": 2**62, "crc32": "0" * 8}},
        {"step": "7"},
        {"step": 2**70},
        {"metadata": None, "tree": None, "tensors": {}},
        {"tensors": {"file": "../../../etc/passwd", "size": 1, "crc32": "0"}},
    ],
    ids=repr,
)
def test_fields_of_other_types(fields, run):
    reseal(run, **fields)
    says(lambda: read_checkpoint(run), "step-000000007: ")


# JSON.


TEXTS = {
    "nested too deep": (b"[" * 100_000 + b"]" * 100_000, "nested too deep"),
    "objects nested too deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deep"),
    "a key twice": (b'{"lr": 1, "lr": 2}', "the key 'lr' is there twice"),
    "a key twice, inside": (b'{"a": [{"b": 1, "b": 1}]}', "'b' is there twice"),
    "a long number": (b"9" * 100_000, "is not JSON"),
    "not UTF-8": (b'"\xff\xfe"', "is not JSON"),
    "binary": (bytes(range(256)), "is not JSON"),
    "empty": (b"", "is not JSON"),
    "cut": (b'{"a": ', "is not JSON"),
}


@pytest.mark.parametrize(("content", "part"), TEXTS.values(), ids=TEXTS.keys())
def test_json(content, part, run, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    says(lambda: read_json(path), str(path), part)
    path.write_bytes(content.replace(b"\n", b"") + b"\n")
    says(lambda: list(read_jsonl(path)), "line 1 of")
    (newest(run) / "state.json").write_bytes(content)
    says(lambda: read_checkpoint(run), "'state.json' is")


def test_files_that_are_too_large(run, tmp_path):
    path = tmp_path / "config.json"
    path.touch()
    os.truncate(path, MOST + 1)  # holes take no space
    says(lambda: read_json(path), "more than the 67,108,864 bytes that are read")
    os.truncate(newest(run) / "state.json", MOST + 1)
    says(lambda: read_checkpoint(run), "more than the")
    path.write_bytes(b"")
    os.truncate(path, 3 * MOST)
    with pytest.raises(CheckpointError, match=r"line 1 .* has no end"):
        list(read_jsonl(path))


# Special files and links.


KINDS = {
    "fifo": os.mkfifo,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "null": lambda path: path.symlink_to("/dev/null"),
    "loop": lambda path: path.symlink_to(path),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_special_files(make, run, tmp_path):
    path = tmp_path / "odd"
    make(path)
    for read in (read_json, load_weights, lambda path: list(read_jsonl(path)), JsonLines):
        says(lambda read=read: read(path), str(path))
    for name in ("state.json", "tensors.safetensors"):
        other = tmp_path / name
        shutil.copytree(run, other)
        (newest(other) / name).unlink()
        make(newest(other) / name)
        says(lambda other=other: read_checkpoint(other), "step-000000007: ")
    make(run / "lock")
    says(lambda: RunLock(run).acquire(), str(run / "lock"))


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl"])
def test_a_link_is_not_written_through(name, tmp_path):
    """Both files are truncated: a link could have any file of the user's emptied."""
    mine = tmp_path / "mine"
    mine.write_text("precious, without the end of a line")
    (tmp_path / name).symlink_to(mine)
    opened = RunLock(tmp_path).acquire if name == "lock" else lambda: JsonLines(tmp_path / name)
    says(opened, name, "symbolic link")
    assert mine.read_text() == "precious, without the end of a line"


def test_checkpoints_that_lead_out_of_the_run(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    shutil.move(run / "checkpoints", elsewhere)
    (run / "checkpoints").symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    says(lambda: read_checkpoint(run), "symbolic link")
    says(lambda: write_checkpoint(run, STATE, 8), "symbolic link")
    assert sorted(elsewhere.rglob("*")) == before
    (run / "checkpoints").unlink()
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step-000000007").symlink_to(elsewhere / "step-000000007")
    says(lambda: read_checkpoint(run), "there is no checkpoint")
    write_checkpoint(run, STATE, 8, keep=1)
    assert sorted(elsewhere.rglob("*")) == before


# Marks of logs.


@pytest.fixture
def log(tmp_path):
    with JsonLines(tmp_path / "metrics.jsonl") as log:
        for step in range(5):
            log.append({"step": step})
        yield log


def test_a_mark_knows_what_was_before_it(log):
    mark = log.mark()
    assert mark == mark_of(log.path, mark.size) and mark.lines == 5 and mark.size == log.position()
    log.append({"step": 5})
    mark.check(log.path)
    log.truncate(mark.size)
    assert log.mark() == mark
    log.close()
    with JsonLines(log.path) as again:
        assert again.mark() == mark


LINES = [f'{{"step": {step}}}\n'.encode() for step in range(5)]
DAMAGE = {
    "cut in a line": (b"".join(LINES)[:-3], "was shortened: it has 4 whole lines (57 bytes)"),
    "last line gone": (b"".join(LINES[:-1]), "4 whole lines (48 bytes), and had 5 (60 bytes)"),
    "first line gone": (b"".join(LINES[1:]), "was shortened"),
    "empty": (b"", "0 whole lines"),
    "edited": (b"".join(LINES).replace(b"3", b"8"), "was changed"),
    "reordered": (b"".join(LINES[::-1]), "was changed"),
    "a line twice": (LINES[0] + b"".join(LINES), "was changed"),
    "garbage": (bytes(range(60)), "was changed"),
    "zeros": (bytes(60), "was changed"),
}


@pytest.mark.parametrize(("content", "part"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_mark_finds_damage(content, part, log):
    mark = log.mark()
    log.path.write_bytes(content)
    says(lambda: mark.check(log.path), str(log.path), part)
    assert log.path.read_bytes() == content


def test_an_absent_log_is_empty(tmp_path):
    Mark(0, 0, 0).check(tmp_path / "none.jsonl")
    says(lambda: Mark(9, 1, 5).check(tmp_path / "none.jsonl"), "0 whole lines (0 bytes), and had 1")
