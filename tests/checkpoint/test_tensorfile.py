"""Files of tensors: synced, with a checksum, in memory of their own, and errors that say what happened."""

import errno
import json
import os
import zlib

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

from growthring.checkpoint import CheckpointError, tensorfile
from growthring.checkpoint.tensorfile import DTYPES, read_metadata, read_tensors, write_tensors
from tests.checkpoint.same import assert_same


def some_tensors():
    tensors = {
        str(dtype): torch.arange(5, dtype=torch.uint8).repeat(dtype.itemsize).view(dtype)
        for dtype in DTYPES
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
    os.truncate(path, 0)  # to read a mapping now would end this process
    assert tensors["a"].sum() == 2 and tensors["b"].sum() == 0


def test_views_of_one_memory_are_written_in_full(tmp_path):
    flat = torch.arange(6.0)
    tensors = {"a": flat, "b": flat, "start": flat[:2], "end": flat[4:], "none": flat[:0]}
    write_tensors(tmp_path / "a", tensors)
    assert_same(dict(sorted(tensors.items())), dict(sorted(read_tensors(tmp_path / "a").items())))


@pytest.mark.skipif(os.name == "nt", reason="has no such modes")
@pytest.mark.parametrize("umask", [0o022, 0o077], ids=oct)
def test_the_mode_is_that_of_any_new_file(umask, tmp_path):
    before = os.umask(umask)
    try:
        write_tensors(tmp_path / "a", {"a": torch.zeros(2)})
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("place", ["", ' at path "/run/.tmpXgSd1v"'], ids=["plain", "path"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EIO])
def test_what_the_system_told_the_library_is_an_oserror(code, place, tmp_path, monkeypatch):
    reason = os.strerror(code)

    def fail(*arguments):
        raise SafetensorError(
            f"Error while serializing: I/O error: {reason} (os error {code}){place}"
        )

    monkeypatch.setattr(tensorfile, "save_file", fail)
    with pytest.raises(OSError) as caught:
        write_tensors(tmp_path / "a", {})
    assert (caught.value.errno, caught.value.strerror) == (code, reason)
    assert isinstance(caught.value, PermissionError) == (code == errno.EACCES)


def test_other_refusals_of_the_library(tmp_path, monkeypatch):
    def fail(*arguments):
        raise SafetensorError("Error while serializing: header too large")

    monkeypatch.setattr(tensorfile, "save_file", fail)
    with pytest.raises(CheckpointError, match=r"cannot write '.*a': .*header too large\."):
        write_tensors(tmp_path / "a", {})


def test_errors_of_the_system_keep_their_kind(tmp_path):
    (tmp_path / "there").write_bytes(b"")
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "there", {})
    with pytest.raises(FileNotFoundError):
        write_tensors(tmp_path / "no" / "a", {})
    for read in (read_tensors, read_metadata):
        with pytest.raises(FileNotFoundError) as caught:
            read(tmp_path / "a")
        assert caught.value.errno == errno.ENOENT
        with pytest.raises(OSError) as caught:
            read(tmp_path)
        assert caught.value.strerror


def test_another_checksum(tmp_path):
    _, crc = write_tensors(tmp_path / "a", {"a": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=rf"'a' is corrupt: .* is {crc:08x}, .* 00000001\."):
        read_tensors(tmp_path / "a", 1)


def file_of(header, num_bytes=8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(num_bytes)


def entry(**changes):
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


BROKEN = {
    "empty": (b"", "header too small"),
    "short": (b"\x10\0\0", "header too small"),
    "long header": ((10**9).to_bytes(8, "little") + b"{}", "header too large"),
    "no json": (file_of(b"hello"), "invalid JSON"),
    "no utf-8": (file_of(b'"\xff\xfe"'), "invalid UTF-8"),
    "list": (file_of([1]), "invalid JSON"),
    "truncated": (file_of({"a": entry()}, 7), "not fully covered"),
    "overlong": (file_of({"a": entry()}, 9), "not fully covered"),
    "unknown dtype": (file_of({"a": entry(dtype="F9")}), "`F9`"),
    "not of torch": (
        file_of({"a": entry(dtype="F6_E2M3", shape=[4], data_offsets=[0, 3])}, 3),
        "F6",
    ),
    "shape": (file_of({"a": entry(shape=[3])}), "invalid shape"),
    "negative": (file_of({"a": entry(shape=[-1, -2])}), "`-1`"),
    "gap": (file_of({"a": entry(data_offsets=[4, 12])}), "invalid offset for tensor `a`"),
    "huge": (file_of({"a": entry(shape=[2**60], data_offsets=[0, 2**62])}), "overflow"),
    "overlap": (file_of({"a": entry(), "b": entry()}), "invalid offset for tensor"),
    "no entry": (file_of({"a": 3}), "invalid JSON"),
}


@pytest.mark.parametrize("data, reason", BROKEN.values(), ids=BROKEN)
def test_broken_files_are_refused(data, reason, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    message = rf"^not a safetensors file, or a truncated one \(.*{reason}.*\)\.$"
    with pytest.raises(CheckpointError, match=message):
        read_tensors(path)
