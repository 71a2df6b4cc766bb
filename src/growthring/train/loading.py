"""load: a model from a file of `growthring export`, ready to use.

The file names the function that makes its model. By itself growthring calls functions of its own zoo only: code of
anyone else runs if the user names it, never because a file does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from growthring import zoo
from growthring.checkpoint import load_weights, weights_metadata
from growthring.errors import InputError
from growthring.train.card import Card, card_of
from growthring.train.recipe import name_of

ModelFunction = Callable[..., nn.Module]
ZOO: dict[str, ModelFunction] = {
    name_of(value): value
    for key, value in vars(zoo).items()
    if callable(value) and not key.endswith("_")  # those change a model that is there
}
_MOST_NAMED = 3


def load(
    path: str | os.PathLike[str],
    model: ModelFunction | None = None,
    device: torch.device | str = "cpu",
) -> tuple[nn.Module, Card]:
    """The model of a file of `growthring export` with its weights, in eval mode, and its card.

    Args:
        path: of the file.
        model: makes the model, called with the file's options; needed unless it is one of `growthring.zoo`.
        device: where the model goes.

    Raises:
        InputError: the file has no card, or one that cannot be; or the model is not known, or not of these shapes.
        CheckpointError: it cannot be read, or is not a whole safetensors file.

    >>> import tempfile
    >>> from growthring.checkpoint import save_weights
    >>> with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
    ...     card = Card("growthring.zoo.mlp.mlp8", {"width": 4}, (1, 8, 8), "mine")
    ...     save_weights(file.name, zoo.mlp8(width=4).state_dict(), card.metadata())
    ...     model, found = load(file.name)
    >>> found == card, model.training
    (True, False)
    """
    where = f"'{os.fspath(path)}'"
    card = card_of(weights_metadata(path), where)
    if card is None:
        raise InputError(
            f"{where} has no card of growthring in its metadata: it was not written by `growthring export`, or by "
            "one of before. Make the model yourself, and load growthring.checkpoint.load_weights into it."
        )
    weights = load_weights(path)
    return build(card, weights, where, model).to(device), card


def build(
    card: Card,
    weights: Mapping[str, Tensor],
    where: str,
    function: ModelFunction | None = None,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The model of a card with its weights, in eval mode.

    Args:
        card: says what the model is.
        weights: its state_dict.
        where: what messages call it.
        function: makes the model; by default the card's, which is of the zoo.
        options: its arguments; by default the card's.

    Raises:
        InputError: the model is not known, cannot be made, or is not of these shapes.
    """
    given = dict(card.model_options if options is None else options)
    if function is None:
        if card.model not in ZOO:
            raise InputError(
                f"{where} is of a model that '{card.model}' makes, which is not of growthring.zoo, and a file must "
                "not choose what runs on your machine. Name the code yourself if you know what it does: growthring "
                "eval (or generate) --recipe FILE.py:FUNCTION or --model MODULE:FUNCTION; in Python "
                "growthring.load(path, model=FUNCTION)."
            )
        function = ZOO[card.model]
        with torch.device(
            "meta"
        ):  # a stranger's options may ask for any size: none is allocated yet
            _check_shapes(_made(function, given), weights, card, where)
    return filled(_made(function, given), weights, card, where)


def filled(model: nn.Module, weights: Mapping[str, Tensor], card: Card, where: str) -> nn.Module:
    """The model itself, with the weights of a file, in eval mode.

    Raises:
        InputError: they are not of its shapes.
    """
    _check_shapes(model, weights, card, where)
    model.load_state_dict(dict(weights))
    return model.eval()


def _made(function: ModelFunction, options: Mapping[str, Any]) -> nn.Module:
    try:
        with torch.random.fork_rng(devices=[]):
            model = function(**options)
    except Exception as error:  # anybody's code, and anybody's options
        raise InputError(
            f"'{name_of(function)}' cannot be called with {dict(options)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(
            f"'{name_of(function)}' returned a {type(model).__name__}, not an nn.Module."
        )
    return model


def _check_shapes(model: nn.Module, weights: Mapping[str, Tensor], card: Card, where: str) -> None:
    """Refuses weights that are not those of the model, naming the first ones."""
    needed = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    differ = [
        f"'{name}' is {found.get(name, 'missing')} in the file and {needed.get(name, 'missing')} in the model"
        for name in dict.fromkeys([*needed, *found])
        if needed.get(name) != found.get(name)
    ]
    if not differ:
        return
    more = f", and {len(differ) - _MOST_NAMED} more" if len(differ) > _MOST_NAMED else ""
    why = f" They are of '{card.model}' with {dict(card.model_options)}."
    if card.width != "full":
        why += f" They are not of full size ({card.width}), which is what that function makes."
    raise InputError(
        f"the weights in {where} do not fit the model, a {type(model).__name__}: "
        f"{'; '.join(differ[:_MOST_NAMED])}{more}.{why}"
    )
