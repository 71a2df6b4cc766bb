"""Data files from strangers: a message that names the file, no memory for what is only claimed, nothing run."""

import gzip
import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from growthring.data import DataError, load
from growthring.data.folder import ImageFolder
from growthring.data.idx import read_idx
from growthring.data.pickles import read_pickle
from tests.data.layouts import random_bytes
from tests.data.test_npz import COLOUR, LABELS, arrays

MB = 1 << 20


def refused(call, *parts: str, most: int = 20 * MB) -> str:
    """Calls; asserts a DataError with these parts, reached without much memory."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as caught:
            call()
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert all(part in text for part in parts), text
    return text


# .npz


def member(array: np.ndarray, **changes) -> bytes:
    """A .npy whose header may say something else than what is there."""
    file = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape} | changes
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def pack(path: Path, contents: dict[str, bytes], **options) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in contents.items():
            file.writestr(name, content, **options)
    return path


def npys(**changes: bytes) -> dict[str, bytes]:
    whole = {name: member(np.asarray(array)) for name, array in arrays().items()}
    return {f"{name}.npy": content for name, content in (whole | changes).items()}


class Evil:
    def __reduce__(self):
        return (Path("/tmp/growthring-was-here").touch, ())


def object_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Evil(), 1, 2], dtype=object), allow_pickle=True)
    return file.getvalue()


HEADERS = {
    "6 TB": (
        member(COLOUR[:3], shape=(2**31, 3, 32, 32)),
        "claims the shape (2147483648, 3, 32, 32)",
    ),
    "2**62 images": (member(COLOUR[:3], shape=(2**62, 3, 7, 9)), "claims the shape"),
    "fewer bytes": (member(COLOUR[:3], shape=(4, 3, 7, 9)), "which takes 756 bytes"),
    "more bytes": (member(COLOUR[:3], shape=(2, 3, 7, 9)), "which takes 378 bytes, and has 567"),
    "negative": (member(COLOUR[:3], shape=(-1, 3, 7, 9)), "shape"),
    "no axes": (member(np.array(3, np.uint8)), "has shape ()"),
    "float64": (member(COLOUR[:3].astype(float)), "must be uint8 (0 to 255), found float64"),
    "complex": (member(COLOUR[:3].astype(complex)), "found complex128"),
    "texts": (member(np.full((3, 7, 9), "x")), "must be uint8"),
    "structured": (member(COLOUR[:3], descr=[("r", "|u1")]), "must be uint8"),
    "a pickle": (object_array(), "are programs (pickles) and are not read"),
    "an object type": (member(COLOUR[:3], descr="|O"), "not read: train_images"),
    "no header": (b"\x93NUMPY\x01\x00", "damaged"),
    "a long header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b" " * 99, "damaged"),
    "code in the header": (
        b"\x93NUMPY\x01\x00\x2a\x00{'descr': exit(), 'fortran_order': False, }\n",
        "damaged",
    ),
    "a new version": (b"\x93NUMPY\x09\x00" + b" " * 99, "damaged"),
    "empty": (b"", "damaged"),
    "text": (b"images", "damaged"),
}


@pytest.mark.parametrize(("content", "says"), HEADERS.values(), ids=HEADERS.keys())
def test_headers_of_arrays(content, says, tmp_path):
    path = pack(tmp_path / "mine.npz", npys(train_images=content))
    refused(lambda: load("npz", path), str(path), says)
    assert not Path("/tmp/growthring-was-here").exists()


LABEL_CASES = {
    "negative": (np.array([0, -4, 1]), "labels count from 0, found -4"),
    "wrapped": (np.array([0, 2**64 - 1, 1], np.uint64), f"found {2**64 - 1}"),
    "floats": (np.array([0.0, 1.0, 2.0]), "is float64 of shape (3,)"),
    "not a number": (np.array([0.0, np.nan, 2.0]), "is float64"),
    "too few": (LABELS[:2], "needed are whole numbers of shape (3,)"),
    "too many": (LABELS, "needed are whole numbers of shape (3,)"),
    "a square": (np.zeros((3, 3), int), "is int64 of shape (3, 3)"),
    "one-hot": (np.eye(3), "is float64 of shape (3, 3)"),
    "no axes": (np.array(1), "of shape ()"),
    "truth": (np.array([True, False, True]), "is bool"),
    "texts": (np.array(["a", "b", "c"]), "<U1 of shape"),
    "dates": (np.zeros(3, "M8[s]"), "datetime64"),
    "pickles": (np.array([0, 1, 2], dtype=object), "Object"),
}


@pytest.mark.parametrize(("labels", "says"), LABEL_CASES.values(), ids=LABEL_CASES.keys())
def test_labels(labels, says, tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays(train_labels=labels))
    refused(lambda: load("npz", path), str(path), says)


def test_other_orders_of_bytes_and_axes_are_read(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays(np.asfortranarray(COLOUR), LABELS.astype(">i4")))
    train, test = load("npz", path)
    assert np.array_equal(train.images.numpy(), COLOUR[:3]) and train.images.is_contiguous()
    assert train.labels.tolist() + test.labels.tolist() == LABELS.tolist()


def test_members_that_are_not_needed_are_not_read(tmp_path):
    """A file that unpacks to a thousand times its size cost nothing."""
    path = pack(tmp_path / "mine.npz", npys())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        with file.open("extra.npy", "w", force_zip64=True) as stream:
            for _ in range(64):
                stream.write(bytes(MB))
        file.writestr("../../evil.npy", b"x")
        file.writestr("pickled.npy", object_array())
    tracemalloc.start()
    train, _ = load("npz", path)
    assert tracemalloc.get_traced_memory()[1] < 20 * MB and len(train) == 3
    tracemalloc.stop()
    assert not Path("/tmp/growthring-was-here").exists()


def test_a_bomb_is_refused_by_its_directory(tmp_path):
    """A directory that claims more than deflate could make, and more than the machine has."""
    path = pack(tmp_path / "mine.npz", npys())
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        start = file.start_dir
        size = file.getinfo("train_images.npy").file_size
    at = data.index(struct.pack("<I", size), data.index(b"PK\x01\x02", start))
    data[at : at + 4] = struct.pack("<I", 0xFFFFFFF0)
    path.write_bytes(data)
    refused(lambda: load("npz", path), "claims 4,294,967,280 bytes")


def test_more_than_the_machine_has(tmp_path, monkeypatch):
    path = pack(tmp_path / "mine.npz", npys())
    monkeypatch.setattr("growthring.data.memory.machine_memory", lambda: 500)
    refused(lambda: load("npz", path), str(path), "in memory, this machine has")


def test_odd_archives(tmp_path):
    path = tmp_path / "mine.npz"
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "w") as file:
        for name, content in [*npys().items(), *npys().items()]:
            file.writestr(name, content)
    refused(lambda: load("npz", path), "train_images is in it twice")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        for name, content in npys().items():
            file.writestr(name, content)
    refused(lambda: load("npz", path), "packed in a way that numpy.savez does not use")
    whole = pack(path, npys()).read_bytes()
    for length in range(0, len(whole), 101):
        path.write_bytes(whole[:length])
        refused(lambda: load("npz", path), "damaged")
    num_refused = 0
    for at in range(0, len(whole), 29):  # a flipped bit is damage, or in a date that nobody reads
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            train, _ = load("npz", path)
        except DataError:
            num_refused += 1
        else:
            assert np.array_equal(train.images.numpy(), COLOUR[:3])
    assert num_refused > 0


# Special files, everywhere.


@pytest.mark.parametrize("name", ["npz", "cifar10", "fashion-mnist", "folder"])
@pytest.mark.parametrize("kind", ["fifo", "device", "loop", "folder"])
def test_files_that_are_none(name, kind, tmp_path):
    """A FIFO would hang for ever, a device has no end."""
    places = {
        "npz": ["mine.npz"],
        "cifar10": [f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)],
        "fashion-mnist": ["train-images-idx3-ubyte"],
        "folder": ["train/cat/1.png", "val/cat/1.png"],
    }
    for place in places[name]:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        make = {
            "fifo": os.mkfifo,
            "device": lambda path: path.symlink_to("/dev/zero"),
            "loop": lambda path: path.symlink_to(path),
            "folder": Path.mkdir,
        }[kind]
        make(path)
    root = tmp_path / "mine.npz" if name == "npz" else tmp_path
    refused(lambda: load(name, root), str(tmp_path))


# idx


def idx(shape=(2, 28, 28), content=None, kind=8) -> bytes:
    raw = random_bytes(*shape).tobytes() if content is None else content
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + raw


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (idx((2**32 - 1, 2**16, 2**16), b"abc"), "the header claims"),
        (idx((4000, 28, 28), b"abc"), "claims 3,136,000 bytes"),
        (idx((2, 28, 28), b"x" * 1567), "1567 bytes for the shape (2, 28, 28)"),
        (idx((2, 28, 28), b"x" * 2_000_000), "or more for the shape (2, 28, 28)"),
        (idx((2, 28)), "not an idx file of bytes with 3 axes"),
        (idx(kind=0x0D), "00 00 0d 03 in place of"),
        (b"", "nothing in place of"),
    ],
)
def test_headers_of_idx(content, says, is_packed, tmp_path):
    path = tmp_path / ("images.gz" if is_packed else "images")
    path.write_bytes(gzip.compress(content) if is_packed else content)
    if is_packed and says.startswith(("claims", "1567")):
        says = "damaged"
    refused(lambda: read_idx(path, 3), str(path), says)


def test_a_packed_idx_that_does_not_end(tmp_path):
    """A few kilobytes that unpack to a gigabyte: only what the header says is unpacked."""
    path = tmp_path / "images.gz"
    with gzip.open(path, "wb") as file:
        file.write(idx((2, 28, 28)))
        for _ in range(64):
            file.write(bytes(MB))
    refused(lambda: read_idx(path, 3), "1569 bytes or more")


# Pickles of CIFAR.


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


PICKLES = {
    "a memo of gigabytes": (
        opcodes(b"}", b"r" + struct.pack("<I", 2**31 - 1)),
        "numbers an object",
    ),
    "a memo in text": (opcodes(b"}", b"p2147483647\n"), "numbers an object"),
    "deep tuples": (opcodes(b"}", b"K\x01", b"\x85" * 100_000, b"K\x02", b"s"), "100000 tuples"),
    "an extension": (opcodes(b"\x82\x01"), "EXT1"),
    "a persistent id": (opcodes(b"Pevil\n"), "PERSID"),
    "an instance": (opcodes(b"(cos\nsystem\nU\x02ido"), "OBJ"),
    "an old instance": (opcodes(b"(U\x02idios\nsystem\n"), "INST"),
    "a new object": (opcodes(b"cnumpy\nndarray\n)\x81"), "NEWOBJ"),
    "bytes that claim much": (opcodes(b"T" + struct.pack("<i", 2**31 - 1) + b"x"), ""),
    "a buffer": (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".", ""),
    "a function": (pickle.dumps({"data": os.system}, protocol=2), "it names"),
    "numpy's loader": (pickle.dumps({"data": np.load}, protocol=2), "it names"),
    "a scalar": (pickle.dumps({"data": np.float64(1)}, protocol=2), "it names"),
}


@pytest.mark.parametrize(("content", "says"), PICKLES.values(), ids=PICKLES.keys())
def test_pickles(content, says):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError) as caught:
            read_pickle(content)
        assert tracemalloc.get_traced_memory()[1] < 20 * MB
    finally:
        tracemalloc.stop()
    assert says in str(caught.value)


# Folders of images.


@pytest.fixture
def folder(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            image.fromarray(random_bytes(8, 8, 3)).save(tmp_path / part / name / "1.png")
    return tmp_path


def png(width: int, height: int) -> bytes:
    """The head of a PNG that claims a size."""
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


IMAGES = {
    "a bomb": (png(10_000, 10_000), "pixels are more than"),
    "a larger bomb": (png(60_000, 60_000), ""),
    "postscript": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n",
        "",
    ),
    "text": (b"not an image", ""),
    "empty": (b"", ""),
    "cut": (png(8, 8)[:40], ""),
}


@pytest.mark.filterwarnings("ignore:Image size")
@pytest.mark.parametrize(("content", "says"), IMAGES.values(), ids=IMAGES.keys())
def test_images(content, says, folder):
    (folder / "train" / "cat" / "0.png").write_bytes(content)
    refused(lambda: load("folder", folder), "0.png: not an image that can be read", says)


def test_a_loop_of_folders_is_not_followed(folder):
    (folder / "train" / "cat" / "again").symlink_to(folder / "train", target_is_directory=True)
    assert len(ImageFolder.scan(folder / "train")) == 2


def test_a_folder_that_cannot_be_read_is_not_left_out(folder, monkeypatch):
    real = os.scandir

    def scandir(path):
        if str(path).endswith("hidden"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    (folder / "train" / "cat" / "hidden").mkdir()
    monkeypatch.setattr(os, "scandir", scandir)
    refused(lambda: ImageFolder.scan(folder / "train"), "hidden: cannot be read: Permission denied")


def test_many_large_images_are_not_allocated(folder, monkeypatch):
    monkeypatch.setattr("growthring.data.memory.machine_memory", lambda: 300)
    refused(lambda: load("folder", folder), "in memory, this machine has")
