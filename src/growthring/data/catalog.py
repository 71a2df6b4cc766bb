"""load: data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from growthring.data.cifar import load_cifar
from growthring.data.digits import load_digits
from growthring.data.folder import ImageFolder
from growthring.data.idx import load_fashion_mnist
from growthring.data.images import ImageData
from growthring.data.npz import load_npz
from growthring.errors import InputError

Splits = tuple[ImageData, ImageData]  # for training and for testing
Loader = Callable[[str | Path | None, bool], Splits]


def load(name: str, root: str | Path | None = None, download: bool = False) -> Splits:
    """Reads a data set: (training images, test images).

    | name | root |
    | --- | --- |
    | `"digits"` | not needed: 8 × 8 digits that come with growthring |
    | `"cifar10"`, `"cifar100"` | holds the official folder or archive (python version) |
    | `"fashion-mnist"` | holds the official idx files |
    | `"npz"` | the path of a .npz with train_images, train_labels, test_images, test_labels |
    | `"folder"` | holds train/<class>/<image> and val/<class>/<image>, all images equally large |

    >>> train, test = load("digits")
    >>> train
    ImageData('digits': 1297 images of 1×8×8, 10 classes)

    Args:
        name: one of the above.
        root: where the data is; by default the folder `data` here. `~` is understood.
        download: fetch what is missing from the authors' site (CIFAR and Fashion-MNIST).
    """
    if name not in LOADERS:
        raise InputError(f"there is no data set '{name}'; there are {', '.join(LOADERS)}.")
    return LOADERS[name](root, download)


def _own(name: str, read: Callable[[Path], Splits]) -> Loader:
    """A loader of the user's own data, which is where the user says."""

    def load_own(root: str | Path | None, download: bool) -> Splits:
        if root is None or download:
            raise InputError(f"'{name}' is your own data: pass its path as root, without download.")
        return read(Path(root).expanduser())

    return load_own


def _published(read: Callable[[Path, bool], Splits]) -> Loader:
    """A loader of published data, by default from the folder `data` here."""
    return lambda root, download: read(
        Path("data" if root is None else root).expanduser(), download
    )


def _read_folder(path: Path) -> Splits:
    train, test = ImageFolder.splits(path)
    return train.read(), test.read()


LOADERS: dict[str, Loader] = {
    "digits": lambda root, download: load_digits(),
    "cifar10": _published(partial(load_cifar, "cifar10")),
    "cifar100": _published(partial(load_cifar, "cifar100")),
    "fashion-mnist": _published(load_fashion_mnist),
    "npz": _own("npz", load_npz),
    "folder": _own("folder", _read_folder),
}
NAMES = tuple(LOADERS)
