"""Third-party models for tests: import a package, or skip the test with the reason.

PyPI's torchvision is built for the CUDA torch. Beside the CPU torch its import fails with "operator
torchvision::nms does not exist", and a library that finds it fails too. The Makefile therefore keeps it
in a folder of its own, with timm, which needs it. The two operators are not needed to build a model:
where they are missing they are declared here, before anything imports torchvision.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

_FOLDER = Path(sys.prefix) / "vision"
_libraries: list[torch.library.Library] = []  # a declaration lives as long as its library object


def _find_torchvision() -> None:
    if _FOLDER.is_dir() and str(_FOLDER) not in sys.path:
        sys.path.append(str(_FOLDER))
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
    """Import 'timm', 'torchvision.models', ...; skip where it is not installed."""
    _find_torchvision()
    return pytest.importorskip(name)
