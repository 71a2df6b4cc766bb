"""Recipe: everything that decides a training run, as one frozen value."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from torch import nn

from growthring.errors import InputError

ModelFunction = Callable[..., nn.Module]

_PREFIX = "growthring_recipe_"  # of users' files that are named like a module


@dataclass(frozen=True)
class Recipe:
    """Settings of a run. A recipe is a function that returns one; `--set key=value` changes fields.

    Attributes:
        name: of the recipe.
        model: makes the full-size model; called with `model_options` and a `generator` for its weights.
        model_options: keyword arguments of `model`.
        data: name of a data set for `growthring.data.load`.
        input_shape: of one example, (channels, height, width).
        num_train: use only the first so many training examples; None for all.
        side: average images down to side × side; None leaves them.
        shift: pixels of random shift.
        mirror: whether images are mirrored at random.
        stages, start, growth, epochs, first_epochs, epoch_growth, batch_size, batch_growth, batch_rate,
            schedule, round_to, freeze: see `growthring.planning.plan`.
        budget: share of fixed-size training's FLOPs to stay within, see `growthring.planning.plan`.
        optimizer: sgd, adam, adamw, avagrad or lars.
        lr: learning rate at its peak.
        optimizer_options: more keyword arguments of the optimizer, ring options included.
        warmup_steps: steps over which the rate rises from 0.
        lr_schedule: "cosine" over the whole run, or "constant".
        label_smoothing: of the cross entropy.
        clip_norm: gradients are clipped to this norm; None does not clip.
        method, variance_transfer, noise: see `growthring.Grower`.
        method_options: hyperparameters of the method, see `growthring.methods`.
        precision: "float32" or "bfloat16" (autocast).
        compile: torch.compile, anew at every stage.
        fixed: train the full-size model from the start: the baseline.
        small: train the seed's width throughout and never grow: the other baseline.
        seed: of all random numbers.
        published: the paper's training cost in percent, for comparison.
    """

    name: str
    model: ModelFunction
    model_options: Mapping[str, Any] = field(default_factory=dict)
    data: str = "digits"
    input_shape: tuple[int, ...] = (3, 32, 32)
    num_train: int | None = None
    side: int | None = None
    shift: int = 4
    mirror: bool = True
    stages: int = 9
    start: float = 0.25
    growth: float | None = 0.2
    epochs: int = 160
    first_epochs: int | None = None
    epoch_growth: float = 0.2
    batch_size: int = 128
    batch_growth: float = 0.0
    batch_rate: str = "none"
    schedule: str = "published"
    round_to: int = 2
    freeze: tuple[str, ...] = ()
    budget: float | None = None
    optimizer: str = "sgd"
    lr: float = 0.1
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    warmup_steps: int = 0
    lr_schedule: str = "cosine"
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    method: str = "paired"
    method_options: Mapping[str, Any] = field(default_factory=dict)
    variance_transfer: str = "paper"
    noise: float = 1e-3
    precision: str = "float32"
    compile: bool = False
    fixed: bool = False
    small: bool = False
    seed: int = 0
    published: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON can hold them; the model by its qualified name."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return dict(json.loads(json.dumps(values, default=_described)))


def _described(value: Any) -> Any:
    """What JSON cannot hold, in words that are the same in every process."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, functools.partial):
        inner = [_described(value.func), *map(repr, value.args)]
        inner += [f"{key}={v!r}" for key, v in sorted(value.keywords.items())]
        return f"partial({', '.join(inner)})"
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__.removeprefix(_PREFIX)}.{named.__qualname__}"


def change(recipe: Recipe, settings: list[str]) -> Recipe:
    """A recipe with `key=value` settings applied; `optimizer_options.momentum=0.8` reaches into mappings.

    >>> from growthring.zoo import mlp8
    >>> change(Recipe("mine", mlp8), ["epochs=3", "optimizer_options.momentum=0.8"]).epochs
    3
    """
    fields = {f.name: f for f in dataclasses.fields(recipe)}
    for setting in settings:
        key, separator, text = setting.partition("=")
        name, _, inner = key.strip().partition(".")
        if not separator or name not in fields:
            near = ", ".join(sorted(set(fields) - {"name", "model"}))
            raise InputError(f"--set {setting!r}: expected key=value with a key out of {near}.")
        if name in ("name", "model"):
            raise InputError(f"--set {setting!r}: write a recipe of your own to change the {name}.")
        kind, old = str(fields[name].type), getattr(recipe, name)
        value = _value(text)
        value = value if isinstance(value, str) or kind != "str" else text.strip()
        if inner:
            if not isinstance(old, Mapping):
                raise InputError(f"--set {setting!r}: '{name}' has no parts.")
            value = {**old, inner: value}
        elif not fits(value, kind):
            found = type(value).__name__
            raise InputError(f"--set {setting!r}: '{name}' is {kind}, not {found}.")
        made: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value}
        recipe = dataclasses.replace(recipe, **made)
    return recipe


def _value(text: str) -> Any:
    known = {"true": True, "false": False, "none": None, "null": None}
    if text.strip().lower() in known:
        return known[text.strip().lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two: nested too deep
        return text


def fits(value: Any, kind: str) -> bool:
    """Whether a value is of a field's type, going by its annotation.

    >>> fits(3, "int | None"), fits("3", "int | None")
    (True, False)
    """
    checks: dict[str, Callable[[Any], bool]] = {
        "None": lambda v: v is None,
        "bool": lambda v: isinstance(v, bool),
        "int": lambda v: isinstance(v, int) and not isinstance(v, bool),
        "float": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
        "str": lambda v: isinstance(v, str),
        "tuple[int, ...]": lambda v: _all(v, int),
        "tuple[str, ...]": lambda v: _all(v, str),
        "Mapping[str, Any]": lambda v: isinstance(v, Mapping),
    }
    return any(checks[part.strip()](value) for part in kind.split("|"))


def _all(values: Any, kind: type) -> bool:
    is_sequence = isinstance(values, (tuple, list))
    return is_sequence and all(isinstance(v, kind) and not isinstance(v, bool) for v in values)


def load_recipe(source: str, known: Mapping[str, Callable[[], Recipe]]) -> Recipe:
    """A recipe by name, or from a user's file as `path/to/file.py:function`."""
    path, separator, function = source.rpartition(":")
    if not separator or not path.endswith(".py"):
        if source not in known:
            listed = ", ".join(known)
            raise InputError(
                f"there is no recipe '{source}'. Known: {listed}; or path/to/file.py:function."
            )
        return known[source]()
    file = Path(path)
    if not file.is_file():
        raise InputError(f"there is no file '{path}'.")
    module = _load_file(file)
    make = getattr(module, function, None)
    if not callable(make):
        raise InputError(f"'{path}' has no function '{function}'.")
    try:
        recipe = make()
    except Exception as error:  # the user's own code
        raise InputError(f"'{source}' failed: {type(error).__name__}: {error}") from error
    if not isinstance(recipe, Recipe):
        raise InputError(
            f"'{source}' returned a {type(recipe).__name__}, not a growthring.train.Recipe."
        )
    return recipe


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Runs what the file says, and not a __pycache__ beside it, which may say something else."""

    def get_code(self, fullname: str) -> CodeType:
        """Compiles the source."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _load_file(file: Path) -> ModuleType:
    """A user's file as a module, which finds its neighbours, and which dataclasses and pickles find."""
    name = file.stem  # but a file named like a module must not replace it
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(file):
        name = f"{_PREFIX}{name}"
    loader = _SourceLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # importing runs the user's own code
        del sys.modules[name]
        raise InputError(f"cannot import '{file}': {type(error).__name__}: {error}") from error
    return module


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two recipes' settings, in words; one that did not exist yet had its default.

    >>> differences({"epochs": 3}, {"epochs": 4, "small": False})
    ['epochs: 3 -> 4']
    """
    fields = {f.name: f for f in dataclasses.fields(Recipe)}
    known = {**{key: _default(fields[key]) for key in new if key in fields}, **old}
    keys = dict.fromkeys([*old, *new])
    return [f"{k}: {known.get(k)!r} -> {new.get(k)!r}" for k in keys if known.get(k) != new.get(k)]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default
