"""Card: what one has to know to use trained weights, as JSON in the metadata of their safetensors file.

A file may come from a stranger: every field is checked before it is used, and nothing that it names is run.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_type_hints

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from growthring.checkpoint.jsontext import dumps, loads
from growthring.data import Batches, FolderBatches, Preprocessing
from growthring.data.batch import Stream
from growthring.errors import GrowthError, InputError
from growthring.train.bounds import misfit
from growthring.train.kinds import describe, fits, shortened
from growthring.train.recipe import Recipe, name_of

KEY = "growthring"  # of the metadata
VERSION = 1
_BATCH = 500  # where nothing is known
_FIXED = {
    "value_range": [0, 1],
    "layout": "NCHW",
}  # of inputs before mean and std, for other readers
_NEEDED = ("model", "model_options", "input_shape", "recipe")
_BOUNDED = ("input_shape", "batch_size", "label_smoothing", "precision")  # as settings of a recipe


@dataclass(frozen=True)
class Card:
    """What the weights in a file are, and how to use them.

    Attributes:
        model: qualified name of the function that makes the model.
        model_options: keyword arguments of that function.
        input_shape: of one example, (channels, height, width) for images; a batch has one more axis before them.
        input_type: of the numbers in it, as torch names them; of a model with several inputs, the first.
        recipe: name of the recipe that it was trained with.
        data: name of the data set, as `growthring.data.load` knows it; None for data of the user's own program.
        preprocessing: from bytes to inputs; None where that is not known.
        classes: names of the classes in the order of the outputs; None where they have none.
        by_arrival: whether that is the order in which they came, and not that of the data.
        width: "full", "seed" (trained at the seed's width throughout), or where an unfinished run was.
        fading: norms whose statistics were still fading in: plain weights give other outputs than the run's model.
        test_accuracy, test_loss: measured at the end, on the test data.
        scores: other metrics on the test data, by their keys.
        task: name of the task.
        task_options: its settings.
        processes: how many trained it, one number after the other where that changed; empty for one.
        files: what the weights mean nothing without (a vocabulary): names, and fingerprints of their contents.
        label_smoothing: of the cross entropy that the loss is; None for a loss of the user's own.
        precision, batch_size: that they were measured with.
        versions: of growthring and torch.

    >>> card = Card("growthring.zoo.mlp.mlp8", {"width": 4}, (1, 8, 8), "mine")
    >>> card_of(card.metadata()) == card
    True
    """

    model: str
    model_options: Mapping[str, Any]
    input_shape: tuple[int, ...]
    recipe: str
    input_type: str = "float32"
    data: str | None = None
    preprocessing: Preprocessing | None = None
    classes: tuple[str, ...] | None = None
    width: str = "full"
    fading: tuple[str, ...] = ()
    test_accuracy: float | None = None
    test_loss: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    task: str | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)
    processes: tuple[int, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    label_smoothing: float | None = 0.0
    precision: str = "float32"
    batch_size: int = _BATCH
    versions: Mapping[str, str] = field(default_factory=dict)
    by_arrival: bool = False

    @property
    def has_preparation(self) -> bool:
        """Whether it says how inputs are made of the data; tokens are the data itself, or made with files."""
        return self.preprocessing is not None or self.input_type == "int64"

    def as_dict(self) -> dict[str, Any]:
        """The card as JSON can hold it."""
        values = asdict(self)
        for key in (
            "scores",
            "task",
            "task_options",
            "processes",
            "files",
            "by_arrival",
        ):  # older readers know nothing of them
            if not values[key]:
                values.pop(key)
        if self.preprocessing is not None:
            values["preprocessing"] |= _FIXED
        return dict(json.loads(dumps({"version": VERSION, **values})))

    def metadata(self) -> dict[str, str]:
        """The card as the strings of a safetensors file."""
        return {KEY: dumps(self.as_dict())}

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self.model_options.items())
        shape = ", ".join(map(str, ("n", *self.input_shape)))
        lines = {
            "model": f"{self.model}({options})",
            "input": f"{self.input_type} ({shape})",
            **self._inputs(),
            "trained": f"recipe {self.recipe}, data {self.data or 'of your own'}",
        }
        if self.width != "full":
            lines["width"] = self.width
        if self.fading:
            lines["fading"] = _listed(self.fading)
        if self.test_accuracy is not None:
            lines["test accuracy"] = f"{self.test_accuracy:.2%}"
        if self.test_loss is not None:
            lines["test loss"] = f"{self.test_loss:.4g}"
        lines |= {key.replace("_", " "): f"{value:.4g}" for key, value in self.scores.items()}
        column = max(15, 2 + max(map(len, lines)))
        return "\n".join(f"{key + ':':{column}}{value}" for key, value in lines.items())

    def _inputs(self) -> dict[str, str]:
        """What inputs go through, in words."""
        if self.files:
            return {"made with": ", ".join(self.files)}
        if self.data is not None and self.preprocessing is None and self.has_preparation:
            return {"made of": "the bytes of a text"}
        return {
            "preprocessing": str(self.preprocessing or "not known: data of your own program"),
            "classes": "without names" if self.classes is None else _listed(self.classes),
        }


def describe_training(
    recipe: Recipe,
    test: Stream | None,
    example: Any,
    *,
    model: Any = None,
    has_own_data: bool = False,
    has_own_loss: bool = False,
    task: str | None = None,
    files: Mapping[str, str] | None = None,
) -> Card:
    """The card of what a training will give.

    Args:
        recipe: the settings.
        test: the test batches.
        example: inputs of the model, as the plan has them.
        model: the function that made the model in place of the recipe's.
        has_own_data: the batches are not those of `recipe.data`.
        has_own_loss: the loss is not the recipe's cross entropy.
        task: name of what the model does.
        files: what its weights mean nothing without: contents by name.
    """
    tensors = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
    stored = recipe.as_dict()
    return Card(
        model=stored["model"] if model is None else name_of(model),
        model_options=stored["model_options"] if model is None else {},
        input_shape=tuple(tensors[0].shape[1:]) if tensors else recipe.input_shape,
        recipe=recipe.name,
        input_type=str(tensors[0].dtype).removeprefix("torch.") if tensors else "float32",
        data=None if has_own_data else recipe.data,
        preprocessing=Preprocessing.of(test, None if has_own_data else recipe.side),
        classes=_classes(test),
        width="seed" if recipe.small else "full",
        task=task,
        task_options=dict(recipe.task_options),
        files={name: fingerprint(text) for name, text in (files or {}).items()},
        label_smoothing=None if has_own_loss else recipe.label_smoothing,
        precision=recipe.precision,
        batch_size=getattr(test, "batch_size", None) or _BATCH,
        versions=_versions(),
        by_arrival=recipe.stream == "classes" and recipe.stream_outputs == "seen",
    )


def fingerprint(text: str) -> str:
    """The same for the same text.

    >>> fingerprint("a") == fingerprint("a") != fingerprint("b")
    True
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def card_of(metadata: Mapping[str, str], where: str = "the file") -> Card | None:
    """The card in the metadata of a safetensors file; None if there is none.

    Raises:
        InputError: it is not as growthring writes it; the field is named.

    >>> card_of({"format": "pt"}) is None
    True
    """
    if KEY not in metadata:
        return None
    try:
        content = loads(metadata[KEY])
    except ValueError as error:
        raise InputError(f"{where}: the metadata '{KEY}' is not JSON: {error}.") from None
    return parse_card(content, where)


def parse_card(content: Any, where: str) -> Card:
    """A card from what `Card.as_dict` gave.

    Raises:
        InputError: it is not as growthring writes it; the field is named.
    """
    if not isinstance(content, dict):
        raise InputError(f"{where}: the card is {shortened(content)}; allowed is an object.")
    if content.get("version") != VERSION:
        raise InputError(
            f"{where}: the card has version {shortened(content.get('version'))}, this growthring reads {VERSION}. "
            "It was written by a newer one, or changed."
        )
    kinds = get_type_hints(Card)
    values = {key: value for key, value in content.items() if key != "version"}
    for key in values:
        if key not in kinds:
            raise InputError(f"{where}: the card has no field {shortened(key)}.")
    for key in _NEEDED:
        if key not in values:
            raise _error(where, key, None, describe(kinds[key], plainly=True))
    for key, value in values.items():
        allowed = _misfit(key, value, kinds[key])
        if allowed is not None:
            raise _error(where, key, value, allowed)
    if values.get("preprocessing") is not None:
        values["preprocessing"] = _preprocessing(values["preprocessing"], where)
    return Card(**_with_tuples(values))


def _misfit(key: str, value: Any, kind: Any) -> str | None:
    """What a field is allowed to be, if the value is not that."""
    if key == "preprocessing":
        return None if value is None or isinstance(value, dict) else "an object or None"
    if key in _BOUNDED and value is not None:
        return misfit(key, value)
    is_fit = fits(value, kind) and (not isinstance(value, float) or not math.isnan(value))
    if key in ("versions", "files") and is_fit:
        is_fit = all(isinstance(version, str) for version in value.values())
    if key == "scores" and is_fit:
        is_fit = all(fits(score, float) for score in value.values())
    return None if is_fit else describe(kind, plainly=True)


def _preprocessing(stored: Mapping[str, Any], where: str) -> Preprocessing:
    values = {key: v for key, v in stored.items() if key not in _FIXED or v != _FIXED[key]}
    kinds = get_type_hints(Preprocessing)
    names = [f.name for f in fields(Preprocessing)]
    for key in dict.fromkeys([*names, *values]):
        value, kind = values.get(key), kinds.get(key)
        numbers = value if isinstance(value, list) else []
        if kind is None or not fits(value, kind) or not all(math.isfinite(v) for v in numbers):
            allowed = "no field of it" if kind is None else describe(kind, plainly=True)
            raise _error(where, f"preprocessing.{key}", value, allowed)
    try:
        return Preprocessing(**_with_tuples(values))
    except GrowthError as error:
        raise InputError(f"{where}: 'preprocessing' of the card cannot be: {error}") from None


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}


def _error(where: str, key: str, value: Any, allowed: str) -> InputError:
    return InputError(f"{where}: '{key}' of the card is {shortened(value)}; allowed is {allowed}.")


def _classes(stream: Stream | None) -> tuple[str, ...] | None:
    if isinstance(stream, Batches):
        return stream.data.classes
    return stream.folder.classes if isinstance(stream, FolderBatches) else None


def _versions() -> dict[str, str]:
    try:
        own = {"growthring": importlib.metadata.version("growthring")}
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        own = {}
    return {**own, "torch": torch.__version__}


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    return f"{len(names)}: {shown}"
