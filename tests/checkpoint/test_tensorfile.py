"""The safetensors format: what we write the library reads, and the other way round."""

import json
import zlib

import pytest
import safetensors.torch
import torch

from growthring.checkpoint import CheckpointError
from growthring.checkpoint.tensorfile import (
    DTYPES,
    read_metadata,
    read_tensors,
    write_tensors,
)
from tests.checkpoint.same import assert_same


def some_tensors():
    tensors = {
        name: torch.arange(5, dtype=torch.uint8).repeat(dtype.itemsize).view(dtype)
        for name, dtype in DTYPES.items()
        if dtype != torch.bool
    }
    return tensors | {
        "flags": torch.tensor([True, False]),
        "number": torch.tensor(3.5),
        "none": torch.empty(2, 0),
        "turned": torch.arange(6.0).reshape(2, 3).t(),
        "größe": torch.ones(2, 2, dtype=torch.bfloat16),
    }


def test_the_library_reads_what_we_write(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = some_tensors()
    size, crc = write_tensors(path, tensors, {"stage": "3"})
    data = path.read_bytes()
    assert (size, crc) == (len(data), zlib.crc32(data))
    loaded = safetensors.torch.load_file(path)
    assert_same(dict(sorted(tensors.items())), dict(sorted(loaded.items())))
    assert_same(dict(sorted(tensors.items())), dict(sorted(read_tensors(path, crc).items())))
    assert read_metadata(path) == {"stage": "3"}
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"stage": "3"}


def test_we_read_what_the_library_writes(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in some_tensors().items()}
    safetensors.torch.save_file(tensors, path, {"by": "the library"})
    assert_same(dict(sorted(tensors.items())), dict(sorted(read_tensors(path).items())))
    assert read_metadata(path) == {"by": "the library"}


def test_every_tensor_is_aligned(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, some_tensors())
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    for entry in header.values():
        assert (entry["data_offsets"][0]) % DTYPES[entry["dtype"]].itemsize == 0


def test_no_tensors(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {})
    assert read_tensors(path) == {} and safetensors.torch.load_file(path) == {}


def test_tensors_have_a_memory_of_their_own(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"a": torch.zeros(2), "b": torch.zeros(2)})
    tensors = read_tensors(path)
    assert tensors["a"].untyped_storage().nbytes() == 8
    tensors["a"].add_(1)
    assert tensors["b"].sum() == 0


def file_of(header, num_bytes=8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(num_bytes)


def entry(**changes):
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


BROKEN = {
    "empty": (b"", "ends in the header"),
    "short": (b"\x10\0\0", "ends in the header"),
    "long header": ((10**9).to_bytes(8, "little") + b"{}", "ends in the header"),
    "no json": (file_of(b"hello"), "its header is no JSON"),
    "no utf-8": (file_of(b'"\xff\xfe"'), "its header is no JSON"),
    "list": (file_of([1]), "no JSON object"),
    "truncated": (
        file_of({"a": entry()}, 7),
        "truncated or overlong.*7 bytes of tensors instead of 8",
    ),
    "overlong": (file_of({"a": entry()}, 9), "truncated or overlong"),
    "unknown dtype": (file_of({"a": entry(dtype="F9")}), "KeyError: 'F9'"),
    "shape": (file_of({"a": entry(shape=[3])}), "the place of 'a' does not fit its shape"),
    "negative": (file_of({"a": entry(shape=[-1, -2])}), "'a' has a negative size"),
    "gap": (file_of({"a": entry(data_offsets=[4, 12])}), "does not fit"),
    "huge": (file_of({"a": entry(shape=[2**60], data_offsets=[0, 2**62])}), "truncated"),
    "overlap": (file_of({"a": entry(), "b": entry()}), "the place of 'b' does not fit"),
    "no entry": (file_of({"a": 3}), "TypeError"),
}


@pytest.mark.parametrize("data, message", BROKEN.values(), ids=BROKEN)
def test_broken_files_are_refused(data, message, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_tensors(path)
