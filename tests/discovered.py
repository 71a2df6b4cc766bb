"""Discovery, cost and proof of one and the same model, once per process: where tests are about other things.

Most of a plan's time is discovery, most of a Grower's the proof of its plan, and hundreds of tests plan the
same few small models. A model is the same if all of it is: classes, attributes, weights, inputs and
options, byte for byte.
"""

import hashlib
import io
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from growthring.graph.discover import discover
from growthring.graph.groups import WidthGroups
from growthring.graph.rules.registry import RULES
from growthring.growing.proof import prove
from growthring.methods.base import GrowthMethod
from growthring.planning.costs import Footprint, footprint
from growthring.planning.plan import Plan

_FOUND: dict[bytes, WidthGroups] = {}
_COUNTED: dict[bytes, Footprint] = {}
_PROVEN: set[bytes] = set()
# Their code does not change, while files that a test writes may all have the same name.
_STABLE = ("growthring", "scripts", "tests", "timm", "torch", "torchvision", "transformers")


def _discover_once(model: Any, *args: Any, **kwargs: Any) -> WidthGroups:
    key = _key(model, args, kwargs)
    if key is None:
        return discover(model, *args, **kwargs)
    if key not in _FOUND:
        _FOUND[key] = discover(model, *args, **kwargs)
    return _FOUND[key]


def _prove_once(plan: Plan, method: GrowthMethod) -> None:
    found = [known for known, groups in _FOUND.items() if groups is plan.groups]
    asked = found, plan.example_inputs, plan.stage_widths, plan.outputs, method
    key = _key(plan.model, asked) if found else None
    if key is None or key not in _PROVEN:
        prove(plan, method)
    if key is not None:
        _PROVEN.add(key)


def _footprint_once(model: Any, inputs: Any) -> Footprint:
    key = _key(model, "footprint", inputs)
    if key is None:
        return footprint(model, inputs)
    if key not in _COUNTED:
        _COUNTED[key] = footprint(model, inputs)
    return _COUNTED[key]


def _key(model: Any, *rest: Any) -> bytes | None:
    """All that discovery sees, or None where that cannot be told."""
    try:
        kinds = {type(module).__module__.partition(".")[0] for module in model.modules()}
        if not kinds.issubset(_STABLE):
            return None
        settings = (
            torch.get_default_dtype(),
            torch.get_default_device(),
            [*RULES],
            [*map(id, RULES.values())],
        )
        written = io.BytesIO()
        _Pickler(written).dump((model, rest, settings))
    except Exception:  # not a module, or of local classes
        return None
    return hashlib.sha256(written.getvalue()).digest()


class _Pickler(pickle.Pickler):
    """Writes a tensor as its values and what it shares, where torch's own way has addresses in it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._numbers: dict[int, int] = {}

    def persistent_id(self, item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return None
        objects = id(item), item.untyped_storage()._cdata
        shared = [self._numbers.setdefault(key, len(self._numbers)) for key in objects]
        seen = type(item), item.dtype, item.shape, item.stride(), item.requires_grad, vars(item)
        values = item.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return str(seen), shared, values


class _NoGarbage:
    @staticmethod
    def collect() -> int:
        return 0


@pytest.fixture(autouse=True)
def discovered_once() -> Iterator[None]:
    """Of a folder or a file that imports it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["growthring.planning.planner"], "discover", _discover_once)
        patch.setattr(sys.modules["growthring.growing.grower"], "prove", _prove_once)
        patch.setattr(sys.modules["growthring.planning.plan"], "footprint", _footprint_once)
        # Collecting garbage before the peak is measured takes as long as a short run.
        patch.setattr(sys.modules["growthring.train.memory"], "gc", _NoGarbage)
        yield
