import pickle
import struct

import numpy as np
import pytest

from growthring.data.pickles import read_pickle
from tests.data.layouts import python2_pickle, random_bytes

IMAGES = random_bytes(4, 3072)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("key", ["data", b"data"])
def test_python_3_pickles_are_read(key, protocol: int):
    table = read_pickle(pickle.dumps({key: IMAGES, "labels": [1, 2]}, protocol=protocol))
    assert np.array_equal(table["data"], IMAGES) and table["data"].dtype == np.uint8
    assert table["labels"] == [1, 2]


def test_python_2_pickles_are_read():
    content = python2_pickle({"data": IMAGES, "labels": [1, 2], "filenames": ["a.png"]})
    # The helper writes what numpy can read, too.
    assert np.array_equal(pickle.loads(content, encoding="bytes")[b"data"], IMAGES)
    table = read_pickle(content)
    assert np.array_equal(table["data"], IMAGES) and table["labels"] == [1, 2]


class Runs:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "content",
    [
        Runs(exec, "import pathlib; pathlib.Path(PATH).touch()"),
        {"data": Runs(print, "executed")},
        {"data": np.dtype("u1"), "labels": Runs(getattr, "", "join")},
    ],
)
def test_nothing_is_run(content, protocol: int, capsys):
    with pytest.raises(
        ValueError, match=r"it names (builtins|__builtin__)\.\w+, which official files do not"
    ):
        read_pickle(pickle.dumps(content, protocol=protocol))
    assert capsys.readouterr().out == ""


def test_what_a_pickle_does_to_its_records_stays_with_it():
    # GLOBAL numpy.ndarray, BUILD with (None, {attribute: value}): would set a class attribute.
    content = b"\x80\x02}(U\x01acnumpy\nndarray\n(NU\x04evilU\x01x\x86tbu."
    with pytest.raises(ValueError):
        read_pickle(content)
    assert not hasattr(np.ndarray, "evil")
    assert read_pickle(python2_pickle({"data": IMAGES}))["data"].shape == (4, 3072)


@pytest.mark.parametrize("protocol", [2, 4])
def test_every_truncation_is_an_error(protocol: int):
    content = pickle.dumps({"data": random_bytes(2, 8), "labels": [1, 2]}, protocol=protocol)
    for length in range(len(content)):
        with pytest.raises(ValueError):
            read_pickle(content[:length])


def test_damage_is_an_error_or_other_data():
    content = bytearray(python2_pickle({"data": random_bytes(2, 8), "labels": [1, 2]}))
    num_refused = 0
    for at in range(len(content)):
        damaged = bytes([*content[:at], content[at] ^ 0x55, *content[at + 1 :]])
        try:
            table = read_pickle(damaged)
        except ValueError:
            num_refused += 1
        else:
            assert isinstance(table, dict)
    assert num_refused > 0


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (IMAGES.astype(np.int16), "not a plain table of bytes"),
        (IMAGES.ravel(), "not a plain table of bytes"),
        (np.asfortranarray(IMAGES), "not a plain table of bytes"),
        (np.array([["a"]], dtype=object), "not a plain table of bytes"),
    ],
)
def test_other_arrays_are_refused(array, message):
    with pytest.raises(ValueError, match=message):
        read_pickle(pickle.dumps({"data": array}, protocol=2))


def test_a_shape_that_the_bytes_do_not_fill_is_refused():
    content = python2_pickle({"data": IMAGES})
    size = struct.pack("<i", 4)
    assert content.count(b"J" + size) == 1
    with pytest.raises(ValueError, match=r"an array of shape \(5, 3072\) has 12288 bytes"):
        read_pickle(content.replace(b"J" + size, b"J" + struct.pack("<i", 5)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps([1]), "it holds a list, not a dict"),
        (pickle.dumps({1: 2}), "a int where a name should be"),
        (b"", "it ends too early"),
        (b"not a pickle", "."),
        (
            b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00hextR.",
            "the encoding 'hex'",
        ),
    ],
)
def test_other_content_is_refused(content: bytes, message: str):
    with pytest.raises(ValueError, match=message):
        read_pickle(content)
