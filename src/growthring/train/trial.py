"""Does the cross entropy fit the model and the data? Found out before a run begins, not in its first epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from growthring.data import Batches, FolderBatches
from growthring.data.batch import Batch, Stream, shapes_in
from growthring.errors import InputError
from growthring.train.measure import apply, predictions


def check_labels(model: nn.Module, example: Batch, streams: Iterable[Stream | None]) -> None:
    """Refuses a model whose outputs are no classes, or fewer than the labels of the data.

    Of a user's own data only the example's labels are known; a wrong one ends the step that meets it.

    Args:
        model: of full size, on the example's device; it runs once, in eval mode.
        example: inputs and targets; None for targets that are not known.
        streams: the data.

    Raises:
        InputError: says what does not fit.
    """
    inputs, targets = example
    outputs = _outputs(model, inputs)
    if not isinstance(outputs, Tensor) or outputs.dim() < 2 or not outputs.is_floating_point():
        what = (
            f"{outputs.dtype} of shape {tuple(outputs.shape)}"
            if isinstance(outputs, Tensor)
            else f"a {type(outputs).__name__}"
        )
        raise InputError(
            f"the model returns {what}; the cross entropy needs a number for each class, (n, classes). Return "
            "that, or train with a loss of your own (Trainer(loss=...))."
        )
    classes = outputs.shape[1]
    for stream in streams:
        for name, labels in _labels(stream):
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= classes:
                raise InputError(
                    f"'{name}' has the label {low if low < 0 else high}, but the model has {classes} outputs, "
                    f"which are for the labels 0 to {classes - 1}. Give the model as many outputs as there are "
                    "classes (model_options, usually num_classes), or correct the labels."
                )
    if targets is not None:
        _check_targets(outputs, targets)


def check_tokens(
    model: nn.Module,
    example: Any,
    count: int,
    places: torch.Size | None = None,
    noun: str = "bytes",
) -> None:
    """Refuses a model that does not give a number for each of so many tokens at each place.

    Args:
        model: of full size; it runs once, in eval mode.
        example: inputs.
        count: how many tokens there are.
        places: shape of what is predicted; by default that of the inputs.
        noun: what tokens are, for messages.

    Raises:
        InputError: says what it gives.
    """
    outputs = _outputs(model, example)
    needed = tuple(example.shape if places is None else places)
    if not isinstance(outputs, Tensor) or tuple(outputs.shape[:-1]) != needed:
        found = (
            tuple(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        )
        raise InputError(
            f"the model returns {found} for tokens of shape {needed}; needed is a number for each "
            "token at each place, (n, length, tokens)."
        )
    if outputs.shape[-1] < count:
        raise InputError(
            f"the model tells {outputs.shape[-1]} tokens apart, the data has {noun} from 0 to {count - 1}: give it "
            f"{count} (model_options, usually vocab_size)."
        )


def _labels(stream: Stream | None) -> list[tuple[str, Tensor]]:
    if isinstance(stream, Batches):
        return [(stream.data.name, stream.data.labels)]
    if isinstance(stream, FolderBatches):
        return [(stream.folder.name, stream.folder.labels)]
    return []


def _check_targets(outputs: Tensor, targets: Any) -> None:
    try:
        nn.functional.cross_entropy(outputs, targets)
        problem = None if _are_classes(targets) else "they are no shares of classes, which sum to 1"
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # of torch
        problem = str(error).splitlines()[0].rstrip(".")
    if problem is not None:
        kind = f"{targets.dtype} of shape " if isinstance(targets, Tensor) else ""
        raise InputError(
            f"the cross entropy does not fit outputs of shape {tuple(outputs.shape)} and targets that are "
            f"{kind}{shapes_in(targets)}, as {problem}. It needs classes that count from 0 (torch.int64); for "
            "anything else, such as numbers to predict, pass Trainer(loss=...)."
        )


def _are_classes(targets: Tensor) -> bool:
    """Whether targets are classes, or shares of them."""
    if not targets.is_floating_point():
        return True
    total = targets.sum(1)
    return bool((targets >= 0).all()) and torch.allclose(total, torch.ones_like(total), atol=1e-2)


def _outputs(model: nn.Module, inputs: Any) -> object:
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return predictions(apply(model.eval(), inputs))
    except Exception as error:  # the user's own code
        raise InputError(
            f"the model cannot take inputs of shape {shapes_in(inputs)}: {type(error).__name__}: {error}"
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode
