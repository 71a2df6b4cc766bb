import hashlib
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from growthring.data import DataError, load
from growthring.data.cifar import LAYOUTS
from tests.data.layouts import (
    CIFAR10,
    python2_pickle,
    random_bytes,
    write_archive,
    write_cifar10,
    write_cifar100,
)

FOLDER = "cifar-10-batches-py"


def check_cifar10(found, images, labels):
    train, test = found
    pixels = torch.from_numpy(images).view(-1, 3, 32, 32)
    assert torch.equal(train.images, pixels[:10]) and torch.equal(test.images, pixels[10:])
    assert train.labels.tolist() + test.labels.tolist() == labels
    assert (train.num_classes, train.name, test.name) == (10, "cifar10", "cifar10")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch):
    """The archive of a tiny CIFAR-10 whose md5 counts as official, and its content."""
    images, labels = write_cifar10(tmp_path / "made")
    folder = tmp_path / "made" / FOLDER
    contents = {f"{FOLDER}/{name}": (folder / name).read_bytes() for name in CIFAR10}
    root = tmp_path / "root"
    root.mkdir()
    path = root / "cifar-10-python.tar.gz"
    write_archive(path, contents)
    make_official(path, monkeypatch)
    return path, contents, images, labels


def make_official(path: Path, monkeypatch, url: str = "https://nowhere.invalid/x") -> None:
    layout = LAYOUTS["cifar10"]
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    file = replace(layout.archive, md5=md5, url=url)
    monkeypatch.setitem(LAYOUTS, "cifar10", replace(layout, archive=file))


def test_the_official_sources():
    ten, hundred = LAYOUTS["cifar10"].archive, LAYOUTS["cifar100"].archive
    assert ten.url == "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    assert ten.md5 == "c58f30108f718f92721af3b95e74349a"
    assert hundred.url == "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
    assert hundred.md5 == "eb9058c3a382ffc7106e4002c42a8d85"


def test_the_folder_below_root_and_as_root(tmp_path: Path):
    images, labels = write_cifar10(tmp_path)
    check_cifar10(load("cifar10", tmp_path), images, labels)
    check_cifar10(load("cifar10", str(tmp_path / FOLDER)), images, labels)


def test_cifar100_has_fine_labels(tmp_path: Path):
    images, labels = write_cifar100(tmp_path)
    train, test = load("cifar100", tmp_path)
    assert torch.equal(train.images, torch.from_numpy(images[:3]).view(-1, 3, 32, 32))
    assert train.labels.tolist() == labels[:3] and test.labels.tolist() == labels[3:]
    assert train.num_classes == 100


def test_the_archive_is_unpacked_once(archive):
    path, contents, images, labels = archive
    check_cifar10(load("cifar10", path.parent), images, labels)
    written = path.parent / FOLDER
    assert sorted(p.name for p in path.parent.iterdir()) == [FOLDER, path.name]
    assert {p.name for p in written.iterdir()} == set(CIFAR10)
    for name in CIFAR10:
        assert (written / name).read_bytes() == contents[f"{FOLDER}/{name}"]
    path.unlink()
    check_cifar10(load("cifar10", path.parent), images, labels)


def test_the_archive_is_read_where_nothing_can_be_written(archive, monkeypatch):
    path, _, images, labels = archive

    def full(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("growthring.data.files.tempfile.mkdtemp", full)
    check_cifar10(load("cifar10", path.parent), images, labels)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_paths_in_the_archive_lead_nowhere(archive, monkeypatch):
    path, contents, images, labels = archive
    evil = {"../outside": b"x", "/tmp/growthring-outside": b"x", f"{FOLDER}/../../outside": b"x"}
    write_archive(path, {**evil, **contents}, links={f"{FOLDER}/link": "/etc"})
    make_official(path, monkeypatch)
    check_cifar10(load("cifar10", path.parent), images, labels)
    assert not (path.parent.parent / "outside").exists()
    assert not Path("/tmp/growthring-outside").exists()
    assert {p.name for p in (path.parent / FOLDER).iterdir()} == set(CIFAR10)


def test_a_link_is_not_a_batch(archive, monkeypatch):
    path, contents, *_ = archive
    del contents[f"{FOLDER}/test_batch"]
    write_archive(path, contents, links={f"{FOLDER}/test_batch": "/etc/passwd"})
    make_official(path, monkeypatch)
    with pytest.raises(
        DataError, match=f"{path.name}: has no {FOLDER}/test_batch; not the official"
    ):
        load("cifar10", path.parent)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_another_md5_is_refused(archive):
    path, *_ = archive
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError) as error:
        load("cifar10", path.parent)
    official = LAYOUTS["cifar10"].archive
    assert str(error.value).startswith(f"{path}: md5 ")
    assert f"the official file has {official.md5}. It is truncated" in str(error.value)
    assert "get it again from https://nowhere.invalid/x" in str(error.value)
    assert not (path.parent / FOLDER).exists()


def test_a_truncated_archive_names_itself(archive, monkeypatch):
    path, *_ = archive
    path.write_bytes(path.read_bytes()[:2000])
    make_official(path, monkeypatch)
    with pytest.raises(DataError, match=f"{re.escape(str(path))}: cannot be unpacked, truncated"):
        load("cifar10", path.parent)


def test_download(archive, tmp_path: Path, monkeypatch):
    path, _, images, labels = archive
    make_official(path, monkeypatch, path.as_uri())
    root = tmp_path / "new" / "root"
    check_cifar10(load("cifar10", root, download=True), images, labels)
    assert sorted(p.name for p in root.iterdir()) == [FOLDER, path.name]
    monkeypatch.setattr("growthring.data.cifar.fetch", None)  # not needed any more
    check_cifar10(load("cifar10", root, download=True), images, labels)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_nothing_there_says_what_to_put_where(name: str, tmp_path: Path):
    with pytest.raises(DataError) as error:
        load(name, tmp_path)
    layout = LAYOUTS[name]
    assert str(error.value) == (
        f"{name}: found neither {tmp_path / layout.folder} nor {tmp_path / layout.archive.name}. "
        f"Put the official archive there ({layout.archive.url}), or pass download=True."
    )


def test_a_missing_file_is_named(tmp_path: Path):
    write_cifar10(tmp_path)
    path = tmp_path / FOLDER / "data_batch_4"
    path.unlink()
    with pytest.raises(
        DataError, match=f"{re.escape(str(path))}: cannot be read .* delete the folder"
    ):
        load("cifar10", tmp_path)


GOOD = {"data": random_bytes(2, 3072), "labels": [1, 2]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (python2_pickle(GOOD)[:-3000], "truncated, damaged or not an official file"),
        (b"", "truncated, damaged or not an official file: it ends too early"),
        (b"\xff\xd8\xff\xe0 a JPEG", "truncated, damaged or not an official file"),
        (pickle.dumps(print), "not an official file: it names builtins.print"),
        (
            python2_pickle({"fine_labels": [1]}),
            r"needed are 'data' and 'labels', found \['fine_labels'\]",
        ),
        (python2_pickle({**GOOD, "data": [1]}), "needed are 'data' and 'labels'"),
        (python2_pickle({**GOOD, "labels": [1]}), r"images of shape \(2, 3072\) and 1 labels"),
        (python2_pickle({"data": random_bytes(0, 3072), "labels": []}), "and 0 labels"),
        (python2_pickle({**GOOD, "data": random_bytes(2, 784)}), r"images of shape \(2, 784\)"),
        (python2_pickle({**GOOD, "labels": [1, 10]}), "labels must be from 0 to 9"),
        (python2_pickle({**GOOD, "labels": [1, -1]}), "labels must be from 0 to 9"),
        (python2_pickle({**GOOD, "labels": [1, 0.5]}), "labels must be from 0 to 9"),
    ],
)
def test_a_foreign_file_is_named(content: bytes, message: str, tmp_path: Path):
    write_cifar10(tmp_path)
    path = tmp_path / FOLDER / "data_batch_2"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{re.escape(str(path))}: .*{message}"):
        load("cifar10", tmp_path)
