"""write_text, write_json, save_weights: whole or not at all."""

import errno
import math
import os
import signal

import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

from growthring.checkpoint import (
    CheckpointError,
    load_weights,
    read_json,
    save_weights,
    weights_metadata,
    write_json,
    write_text,
)
from tests.checkpoint.processes import kill_self, on_call, run_in_child
from tests.checkpoint.same import assert_same


def test_text(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "größer\n")
    write_text(str(path), "größer\nund\r\nbreiter")
    assert path.read_bytes().decode() == "größer\nund\r\nbreiter"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_json(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"widths": (4, 8), "loss": math.inf, "rate": torch.tensor(0.5), 3: path})
    assert read_json(path) == {"widths": [4, 8], "loss": math.inf, "rate": 0.5, "3": str(path)}
    assert path.read_text().startswith('{\n  "widths"') and '"Infinity"' in path.read_text()
    with pytest.raises(CheckpointError, match="cannot write this as JSON"):
        write_json(path, {"f": len})
    assert read_json(path)["rate"] == 0.5
    path.write_text("{")
    with pytest.raises(CheckpointError, match=r"'.*a.json' is not JSON"):
        read_json(path)
    with pytest.raises(CheckpointError, match=r"cannot read '.*b.json': No such file"):
        read_json(tmp_path / "b.json")


WRITERS = {
    "write_text": lambda path, x: write_text(path, str(x)),
    "write_json": lambda path, x: write_json(path, x),
    "save_weights": lambda path, x: save_weights(path, {"x": torch.full((500,), float(x))}),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_killed_or_refused_at_every_call(write, tmp_path):
    def refuse():
        raise OSError(errno.ENOSPC, "No space left on device")

    for act in (kill_self, refuse):
        for number in range(1, 30):
            folder = tmp_path / f"{act.__name__}{number}"
            folder.mkdir()
            path = folder / "file"
            write(path, 1)
            before = path.read_bytes()

            def work(folder=folder, path=path, number=number, act=act):
                count = on_call(folder, number, act)
                try:
                    write(path, 2)
                except CheckpointError as error:
                    assert "No space left on device" in str(error)
                    assert "What was there before is as it was. Free some space" in str(error)
                    assert os.listdir(folder) == ["file"]
                    os._exit(3)
                os._exit(0 if count() < number else 4)

            code = run_in_child(work)
            assert code in (0, 3, 4, -signal.SIGKILL)
            after = path.read_bytes()
            write(path, 2)
            assert after in (before, path.read_bytes())
            if code == 0:
                break
        assert number >= 4


def test_no_folder(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot write .*No such file.*Check the path"):
        write_text(tmp_path / "no" / "a.txt", "x")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.table.weight
        self.norm = nn.BatchNorm1d(3).to(torch.bfloat16)
        self.conv = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)


def test_weights(tmp_path):
    path = tmp_path / "model.safetensors"
    state = dict(Tied().state_dict())
    save_weights(path, state, {"recipe": "demo"})
    assert weights_metadata(path) == {"format": "pt", "recipe": "demo"}
    by_name = dict(sorted(state.items()))
    assert_same(by_name, dict(sorted(load_weights(path).items())))
    assert_same(by_name, dict(sorted(safetensors.torch.load_file(path).items())))
    assert load_weights(path, device="meta")["head.weight"].is_meta
    Tied().load_state_dict(load_weights(path))
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_weights_of_others(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.ones(3)}, path)
    assert_same({"a": torch.ones(3)}, load_weights(path))
    assert weights_metadata(path) == {}


REFUSED = {
    "extra state": (
        {"_extra_state": {"a": 1}},
        None,
        "cannot save '_extra_state': it is of type dict",
    ),
    "complex128": ({"c": torch.ones(1, dtype=torch.complex128)}, None, "'c' .torch.complex128"),
    "sparse": ({"c": torch.eye(2).to_sparse()}, None, "'c' .torch.float32, torch.sparse_coo"),
    "meta": ({"c": torch.ones(1, device="meta")}, None, "'c' .meta.: safetensors has no such"),
    "name": ({"__metadata__": torch.ones(1)}, None, "under the name '__metadata__'"),
    "metadata": ({"a": torch.ones(1)}, {"stage": 3}, "'stage'.=3: safetensors takes strings only"),
}


@pytest.mark.parametrize("state, metadata, message", REFUSED.values(), ids=REFUSED)
def test_refused_weights(state, metadata, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        save_weights(tmp_path / "a.safetensors", state, metadata)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_cannot_be_read(tmp_path):
    path = tmp_path / "a.safetensors"
    for read in (load_weights, weights_metadata):
        path.unlink(missing_ok=True)
        with pytest.raises(CheckpointError, match=r"cannot read '.*a.safetensors': No such file"):
            read(path)
        path.write_bytes(b"hello")
        with pytest.raises(
            CheckpointError, match=r"cannot read '.*': not a safetensors file, or a"
        ):
            read(path)
