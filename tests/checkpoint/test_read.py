"""read_checkpoint: damaged, foreign and newer checkpoints."""

import json
import os
import shutil

import pytest
import torch

from growthring.checkpoint import (
    CheckpointError,
    list_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from growthring.checkpoint.decode import decode
from growthring.checkpoint.write import seal
from tests.checkpoint.same import assert_same


def state_of(step):
    return {"weight": torch.full((50,), float(step)), "none": None, "rate": 0.1 * step}


@pytest.fixture
def run(tmp_path):
    for step in (10, 20):
        write_checkpoint(tmp_path, state_of(step), step, metadata={"step": step})
    return tmp_path


def newest(run):
    return list_checkpoints(run)[-1][1]


def falls_back(run, reason):
    checkpoint = read_checkpoint(run)
    assert checkpoint.step == 10 and checkpoint.metadata == {"step": 10}
    assert_same(state_of(10), checkpoint.state)
    ((path, text),) = checkpoint.skipped
    assert path == newest(run) and reason in text, text


def test_the_newest_is_read(run):
    checkpoint = read_checkpoint(run)
    assert (checkpoint.step, checkpoint.path, checkpoint.skipped) == (20, newest(run), [])
    assert_same(state_of(20), checkpoint.state)
    assert checkpoint.versions["torch"] == torch.__version__


def test_a_step_is_read(run):
    assert read_checkpoint(run, step=10).step == 10
    with pytest.raises(
        CheckpointError, match=r"no checkpoint of step 15 in .*; there are .* 10, 20\."
    ):
        read_checkpoint(run, step=15)
    (newest(run) / "state.json").write_text("{")
    with pytest.raises(
        CheckpointError, match=r"can be used:\n  step-000000020: 'state.json' is trunc"
    ):
        read_checkpoint(run, step=20)


def test_no_run(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in '.*checkpoints'\."):
        read_checkpoint(tmp_path / "no such run")


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
def test_truncated_at_every_kind_of_length(run, name):
    path = newest(run) / name
    data = path.read_bytes()
    for length in [0, 1, 7, 8, 9, 50, len(data) // 2, len(data) - 100, len(data) - 1]:
        path.write_bytes(data[:length])
        falls_back(run, "truncated")
    path.write_bytes(data + b" \n")
    if name == "tensors.safetensors":
        falls_back(run, "overlong")
    path.unlink()
    falls_back(run, "No such file")


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
def test_a_flipped_bit_anywhere(run, name):
    path = newest(run) / name
    data = path.read_bytes()
    for place in range(0, len(data), 3):
        broken = bytearray(data)
        broken[place] ^= 1 << place % 7
        path.write_bytes(broken)
        checkpoint = read_checkpoint(run)
        if checkpoint.step == 20:  # 'E' of an exponent became 'e', a space a tab: the same JSON
            assert name == "state.json" and json.loads(broken) == json.loads(data)
            assert_same(state_of(20), checkpoint.state)
        else:
            assert checkpoint.skipped


def test_zeros_instead_of_contents(run):
    """What a power cut may leave of a file that was not synced."""
    for name in ("tensors.safetensors", "state.json"):
        path = newest(run) / name
        data = path.read_bytes()
        path.write_bytes(bytes(len(data)))
        falls_back(run, "corrupt" if name == "state.json" else "")
        path.write_bytes(data)


def change(run, **fields):
    path = newest(run) / "state.json"
    document = json.loads(path.read_text())
    del document["crc32"]
    document = {key: value for key, value in (document | fields).items() if value is not ...}
    path.write_bytes(seal(document))


def test_foreign_ones_are_skipped(run):
    path = newest(run) / "state.json"
    original = path.read_bytes()
    for text in ("{}", "[1]", "3", '{"crc32": "00000000"}'):
        path.write_text(text)
        falls_back(run, "state.json")
    for fields, reason in [
        ({"format": "other"}, "is not of a growthring checkpoint"),
        ({"format": ...}, "is not of a growthring checkpoint"),
        ({"tensors": ...}, "lacks a field (KeyError: 'tensors')"),
        ({"tree": ...}, "lacks a field"),
        ({"tree": {"pickle": 1}}, "unknown tag 'pickle'"),
        ({"step": 21}, "is of step 21: the folder was renamed"),
    ]:
        path.write_bytes(original)
        change(run, **fields)
        falls_back(run, reason)
    shutil.rmtree(newest(run))
    (run / "checkpoints" / "step-000000020").mkdir()
    falls_back(run, "No such file")


def test_a_newer_format_is_an_error(run):
    change(run, version=2)
    with pytest.raises(CheckpointError, match=r"is of version 2 of the format.* reads 1\. Update"):
        read_checkpoint(run)
    assert read_checkpoint(run, step=10).step == 10


def test_an_indented_file_still_fits(run):
    path = newest(run) / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2))
    assert read_checkpoint(run).step == 20


def test_none_usable(run):
    (newest(run) / "state.json").write_text("{")
    (run / "checkpoints" / "step-000000010" / "tensors.safetensors").write_bytes(b"x")
    message = (
        r"no checkpoint in '.*' can be used:"
        r"\n  step-000000020: 'state.json' is truncated or corrupt: .*"
        r"\n  step-000000010: 'tensors.safetensors' is truncated or overlong: 1 bytes instead of \d+\."
    )
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(run)


def test_a_file_that_may_not_be_read(run, monkeypatch):
    if os.geteuid() == 0:  # root may read everything
        real = os.stat
        path = newest(run) / "tensors.safetensors"

        def stat(target, *args, **kwargs):
            if str(target) == str(path):
                raise PermissionError(13, "Permission denied")
            return real(target, *args, **kwargs)

        monkeypatch.setattr(os, "stat", stat)
    else:
        (newest(run) / "tensors.safetensors").chmod(0)
    falls_back(run, "cannot be read: Permission denied.")


def test_other_folders_are_not_checkpoints(run):
    for name in ("step-5", "best", "step-000000030.tmp", ".writing-000000031-x"):
        (run / "checkpoints" / name).mkdir()
    (run / "checkpoints" / "step-000000032").write_text("a file")
    assert [step for step, _ in list_checkpoints(run)] == [10, 20]
    assert read_checkpoint(run).step == 20


def test_a_device_that_is_not_there_is_no_damage(run):
    if torch.cuda.is_available():
        pytest.skip("the device is there")
    change(run, tree={"tensor": "weight", "device": "cuda:0"})
    with pytest.raises((RuntimeError, AssertionError), match=r"(?i)cuda") as caught:
        read_checkpoint(run, device="cuda")
    assert not isinstance(caught.value, CheckpointError)
    assert read_checkpoint(run, device="cpu").step == 20


def test_only_tensors_of_an_accelerator_move():
    tree = [{"tensor": "a"}, {"tensor": "b", "device": "cuda:0"}]
    a, b = decode({"a": torch.zeros(1), "b": torch.zeros(1)}, tree, device="meta")
    assert (a.device.type, b.device.type) == ("cpu", "meta")
