import re
from pathlib import Path

import pytest
import torch

from growthring.data import DataError, ImageFolder
from growthring.errors import InputError


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_classes_and_files_in_the_order_of_their_names(tmp_path: Path):
    touch(tmp_path, "n02/b.JPEG", "n02/a.jpg", "n01/z.PNG", "n10/deep/er/x.webp", "n10/a.gif")
    touch(tmp_path, "n01/notes.txt", "n01/._z.png", ".cache/x.png", "readme.png")
    folder = ImageFolder.scan(tmp_path)
    assert folder.classes == ("n01", "n02", "n10") and folder.num_classes == 3
    names = [Path(p).relative_to(tmp_path).as_posix() for p in folder.paths]
    assert names == ["n01/z.PNG", "n02/a.jpg", "n02/b.JPEG", "n10/a.gif", "n10/deep/er/x.webp"]
    assert folder.labels.tolist() == [0, 1, 1, 2, 2] and folder.labels.dtype == torch.int64
    assert len(folder) == 5
    assert repr(folder) == f"ImageFolder('{tmp_path}': 5 files, 3 classes)"


def test_both_parts_share_their_classes(tmp_path: Path):
    touch(tmp_path, "train/a/1.png", "train/b/1.png", "train/c/1.png", "val/c/1.png", "val/a/1.png")
    train, val = ImageFolder.splits(tmp_path)
    assert train.classes == val.classes == ("a", "b", "c")
    assert val.labels.tolist() == [0, 2]


def test_a_class_that_training_does_not_have(tmp_path: Path):
    touch(tmp_path, *(f"train/{c}/1.png" for c in "abcdef"), "val/x/1.png")
    path = re.escape(str(tmp_path / "val" / "x"))
    with pytest.raises(
        DataError, match=f"{path}: there is no class 'x' .* which has a, b, c, d, e, …"
    ):
        ImageFolder.splits(tmp_path)


@pytest.mark.parametrize("files", [[], ["train/a/1.png"], ["val/a/1.png"], ["a/1.png"]])
def test_parts_that_are_missing(files: list[str], tmp_path: Path):
    touch(tmp_path, *files)
    with pytest.raises(
        DataError, match=f"{re.escape(str(tmp_path))}: needs the folders train and val or"
    ):
        ImageFolder.splits(tmp_path)


def test_folders_without_images(tmp_path: Path):
    with pytest.raises(DataError, match="none: cannot be read as a folder"):
        ImageFolder.scan(tmp_path / "none")
    touch(tmp_path, "flat/ILSVRC2012_val_00000001.JPEG", "some/a/1.png", "some/b/readme.txt")
    with pytest.raises(DataError, match="flat: has no folders; needed is one for each class"):
        ImageFolder.scan(tmp_path / "flat")
    with pytest.raises(DataError, match=r"b: has no images \(.jpeg, .jpg, "):
        ImageFolder.scan(tmp_path / "some")


def test_labels_must_go_with_the_paths():
    with pytest.raises(InputError, match=r"ImageFolder 'x': labels must be int64 of shape \(1,\)"):
        ImageFolder(("a.png",), torch.tensor([0, 1]), ("a", "b"), "x")
