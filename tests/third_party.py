"""Third-party models for tests: import a package, or skip the test with the reason.

PyPI's torchvision is built for the CUDA torch. Beside the CPU torch its import fails with "operator
torchvision::nms does not exist", and timm and most models of transformers fall with it. The two
operators are not needed to build a model, so they are declared here and the import is tried again.
"""

import importlib
import sys
from types import ModuleType

import pytest
import torch

_libraries: list[torch.library.Library] = []  # a declaration lives as long as its library object


def _repair_torchvision() -> None:
    try:
        importlib.import_module("torchvision")
        return
    except ImportError:
        return
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)
    importlib.import_module("torchvision")


def import_or_skip(name: str) -> ModuleType:
    """Import 'timm', 'torchvision.models', 'transformers', ...; skip where it is not installed."""
    _repair_torchvision()
    return pytest.importorskip(name)
