"""write_checkpoint: the layout on disk, and what is kept."""

import json
import os
import zlib

import pytest
import torch

from growthring.checkpoint import CheckpointError, discard_after, read_checkpoint, write_checkpoint
from growthring.errors import GrowthError, InputError
from tests.checkpoint.runs import check_whole, names, state_of, steps


def test_layout(tmp_path):
    path = write_checkpoint(tmp_path / "a" / "run", state_of(5), 5, metadata={"recipe": "demo"})
    assert path == tmp_path / "a" / "run" / "checkpoints" / "step-000000005"
    assert sorted(p.name for p in path.iterdir()) == ["state.json", "tensors.safetensors"]
    document = json.loads((path / "state.json").read_text())
    data = (path / "tensors.safetensors").read_bytes()
    assert document["format"] == "growthring checkpoint" and document["version"] == 1
    assert document["step"] == 5 and document["metadata"] == {"recipe": "demo"}
    assert document["tensors"] == {
        "file": "tensors.safetensors",
        "size": len(data),
        "crc32": f"{zlib.crc32(data):08x}",
    }
    assert document["versions"]["torch"] == torch.__version__
    assert {"python", "numpy"} <= set(document["versions"])
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o777 & ~umask


def test_keeps_the_newest(tmp_path):
    for step in range(1, 6):
        write_checkpoint(tmp_path, state_of(step), step)
    assert steps(tmp_path) == [3, 4, 5]
    write_checkpoint(tmp_path, state_of(6), 6, keep=1)
    assert names(tmp_path) == ["step-000000006"]
    write_checkpoint(tmp_path, state_of(7), 7, keep=None)
    assert steps(tmp_path) == [6, 7]


def test_never_deletes_what_it_wrote(tmp_path):
    for step in (10, 20, 30):
        write_checkpoint(tmp_path, state_of(step), step)
    write_checkpoint(tmp_path, state_of(5), 5, keep=1)
    assert steps(tmp_path) == [5]
    write_checkpoint(tmp_path, state_of(40), 40, keep=3)
    write_checkpoint(tmp_path, state_of(2), 2, keep=2)
    assert steps(tmp_path) == [2, 40]


def test_more_steps_than_digits(tmp_path):
    for step in (999_999_999, 1_000_000_000):
        write_checkpoint(tmp_path, state_of(step), step)
    assert steps(tmp_path) == [999_999_999, 1_000_000_000]
    assert read_checkpoint(tmp_path).step == 1_000_000_000


def test_the_same_step_again_replaces_it(tmp_path):
    write_checkpoint(tmp_path, {"x": 1}, 7)
    write_checkpoint(tmp_path, {"x": 2}, 7, keep=1)
    assert read_checkpoint(tmp_path).state == {"x": 2}
    assert names(tmp_path) == ["step-000000007"]


def test_one_that_was_being_replaced_counts(tmp_path):
    path = write_checkpoint(tmp_path, state_of(7), 7)
    path.rename(path.with_name(path.name + ".old"))  # killed between the two renames
    check_whole(tmp_path, 7)
    assert steps(tmp_path) == [7]
    write_checkpoint(tmp_path, state_of(7), 7)
    assert names(tmp_path) == ["step-000000007"]


def test_leftovers_of_killed_writes_go(tmp_path):
    write_checkpoint(tmp_path, state_of(1), 1)
    for name in (".writing-000000002-abc", ".deleting-step-000000000-abc"):
        (tmp_path / "checkpoints" / name).mkdir()
        (tmp_path / "checkpoints" / name / "tensors.safetensors").write_bytes(b"x")
    (tmp_path / "checkpoints" / "notes.txt").write_text("mine")
    write_checkpoint(tmp_path, state_of(2), 2)
    assert names(tmp_path) == ["notes.txt", "step-000000001", "step-000000002"]


def test_discard_after(tmp_path):
    for step in (10, 20, 30):
        write_checkpoint(tmp_path, state_of(step), step)
    assert [path.name for path in discard_after(tmp_path, 10)] == [
        "step-000000030",
        "step-000000020",
    ]
    assert names(tmp_path) == ["step-000000010"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"step": -1}, "step=-1: a checkpoint needs a whole number of steps"),
        ({"step": True}, "step=True"),
        ({"step": 1.0}, "step=1.0"),
        ({"step": 1, "keep": 0}, "keep=0: keep at least 1 checkpoint, or None for all"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, message, tmp_path):
    with pytest.raises(InputError, match=message):
        write_checkpoint(tmp_path, {}, **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "metadata", [{"x": len}, {"x": float("nan")}, {"x": torch.ones(1)}], ids=str
)
def test_metadata_is_plain_json(metadata, tmp_path):
    with pytest.raises(CheckpointError, match="the metadata is not plain JSON"):
        write_checkpoint(tmp_path, {}, 1, metadata=metadata)


def test_a_state_with_code_changes_nothing(tmp_path):
    write_checkpoint(tmp_path, state_of(1), 1)
    with pytest.raises(GrowthError, match=r"'f': the builtin_function_or_method 'len'"):
        write_checkpoint(tmp_path, {"f": len}, 2)
    assert names(tmp_path) == ["step-000000001"]


@pytest.mark.skipif(os.name == "nt", reason="folders are not synced there")
def test_everything_is_synced(tmp_path, monkeypatch):
    synced = set()
    real = os.fsync

    def fsync(descriptor):
        synced.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    path = write_checkpoint(tmp_path, state_of(1), 1)
    for part in (*path.iterdir(), path, path.parent, tmp_path):
        assert part.stat().st_ino in synced, part
