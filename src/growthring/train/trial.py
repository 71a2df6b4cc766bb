"""Does the model have an output for each label? Found out before a run begins, not in its first epoch."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from growthring.data import Batches, FolderBatches
from growthring.data.stream import BatchStream
from growthring.errors import InputError


def check_labels(model: nn.Module, example: Tensor, streams: Iterable[BatchStream | None]) -> None:
    """Refuses a model whose outputs are no classes, or fewer than the labels of the data.

    The labels of a user's own kind of stream are not known; a wrong one ends the step that meets it.

    Args:
        model: of full size, on the example's device; it runs once, in eval mode.
        example: inputs.
        streams: the data.

    Raises:
        InputError: says what does not fit.
    """
    outputs = _outputs(model, example)
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


def _labels(stream: BatchStream | None) -> list[tuple[str, Tensor]]:
    if isinstance(stream, Batches):
        return [(stream.data.name, stream.data.labels)]
    if isinstance(stream, FolderBatches):
        return [(stream.folder.name, stream.folder.labels)]
    return []


def _outputs(model: nn.Module, example: Tensor) -> object:
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return model.eval()(example)
    except Exception as error:  # the user's own code
        raise InputError(
            f"the model cannot take inputs of shape {tuple(example.shape)}: {type(error).__name__}: {error}"
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode
