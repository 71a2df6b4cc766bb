"""load: data sets by name."""

from __future__ import annotations

from pathlib import Path

from growthring.data.cifar import load_cifar
from growthring.data.digits import load_digits
from growthring.data.folder import ImageFolder
from growthring.data.idx import load_fashion_mnist
from growthring.data.images import ImageData
from growthring.data.npz import load_npz
from growthring.errors import InputError

NAMES = ("digits", "cifar10", "cifar100", "fashion-mnist", "npz", "folder")


def load(
    name: str, root: str | Path | None = None, download: bool = False
) -> tuple[ImageData, ImageData]:
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
    if name not in NAMES:
        raise InputError(f"there is no data set '{name}'; there are {', '.join(NAMES)}.")
    if name == "digits":
        return load_digits()
    if name in ("npz", "folder"):
        if root is None or download:
            raise InputError(f"'{name}' is your own data: pass its path as root, without download.")
        path = Path(root).expanduser()
        if name == "npz":
            return load_npz(path)
        train, test = ImageFolder.splits(path)
        return train.read(), test.read()
    path = Path("data" if root is None else root).expanduser()
    if name == "fashion-mnist":
        return load_fashion_mnist(path, download)
    return load_cifar(name, path, download)
