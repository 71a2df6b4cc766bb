"""What decoding needs of its arguments, and how long a translation may become."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from growthring.core.wording import counted
from growthring.decoding.modes import device_of
from growthring.errors import InputError

_STEEPEST = 10.0  # powers of a length beyond it leave the numbers


@dataclass(frozen=True)
class Task:
    """Sentences to translate, checked.

    Attributes:
        src: (B, S), on the model's device.
        mask: (B, S), True at padding, or None.
        bos: the token that a translation starts from.
        eos: the token that ends it.
        pad: the token of padding, or None.
        limits: most tokens of each translation, `eos` not counted.
        length_penalty: the power of the length that divides a log-probability.
    """

    src: Tensor
    mask: Tensor | None
    bos: int
    eos: int
    pad: int | None
    limits: list[int]
    length_penalty: float

    @property
    def banned(self) -> set[int]:
        """Tokens that no translation has; `eos` may be the same token as one of them."""
        return {t for t in (self.bos, self.pad) if t is not None} - {self.eos}

    def score(self, log_prob: float, num_tokens: int) -> float:
        """Log-probability over a power of the length with `eos`."""
        return log_prob / (num_tokens + 1) ** self.length_penalty


def make_task(
    model: nn.Module,
    src: Tensor,
    mask: Tensor | None,
    bos: int,
    eos: int,
    pad: int | None,
    max_length: int | Sequence[int] | None,
    length_penalty: float,
) -> Task:
    """Checks what was given.

    Raises:
        InputError: it does not fit.
    """
    src, mask = _checked_source(src, mask, device_of(model))
    given = [max_length] if isinstance(max_length, int) else list(max_length or [])
    if given and min(given) < 1:
        least = min(given)
        raise InputError(f"max_length={least}: a translation needs room for at least 1 token.")
    if not isinstance(max_length, int | None) and len(given) != len(src):
        raise InputError(
            f"max_length has {len(given)} numbers for {counted(len(src), 'sentence')}: pass one for each, or one "
            "for all."
        )
    if not abs(length_penalty) <= _STEEPEST:
        raise InputError(
            f"length_penalty={length_penalty}: pass a power of the length between -{_STEEPEST:g} and "
            f"{_STEEPEST:g}, such as 1.0 (the mean of a translation's log-probabilities) or 0.0 (their sum)."
        )
    limits = _limits(model, src, mask, max_length)
    task = Task(src, mask, bos, eos, pad, limits, length_penalty)
    source, target = (getattr(model, f"{name}_embedding", None) for name in ("src", "tgt"))
    if isinstance(source, nn.Embedding):  # what is unknown here, the model will meet by itself
        check_tokens("src", src, source.num_embeddings)
    if isinstance(target, nn.Embedding):
        check_special_tokens(task, target.num_embeddings)
    return task


def _checked_source(
    src: Tensor, mask: Tensor | None, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Source and mask of the right types and shapes, on a device; no sentence is empty."""
    if src.dim() != 2 or src.is_floating_point() or src.dtype == torch.bool:
        raise InputError(
            f"src has shape {tuple(src.shape)} of {src.dtype}: pass whole numbers (sentences, tokens)."
        )
    if src.shape[1] == 0:
        raise InputError("src has no tokens: every sentence needs at least one, such as its end.")
    if mask is None:
        return src.to(device, torch.long), None
    if mask.shape != src.shape or mask.dtype != torch.bool:
        raise InputError(
            f"src_padding_mask has shape {tuple(mask.shape)} of {mask.dtype}, and src {tuple(src.shape)}: pass "
            "a torch.bool mask of the same shape, True at padding."
        )
    empty = mask.all(1).nonzero().flatten().tolist()
    if empty:
        raise InputError(
            f"{counted(len(empty), 'sentence')} of src, the first at {empty[0]}, "
            f"{'is' if len(empty) == 1 else 'are'} all padding: every sentence needs at least one token "
            "(src_padding_mask is True at padding)."
        )
    return src.to(device, torch.long), mask.to(device)


def default_limit(num_tokens: int) -> int:
    """How long a translation of a sentence of so many tokens may be.

    Example:
        >>> default_limit(20)
        50
    """
    return 2 * num_tokens + 10


def _limits(
    model: nn.Module, src: Tensor, mask: Tensor | None, max_length: int | Sequence[int] | None
) -> list[int]:
    """Most tokens of each translation: `bos` and they have to fit into the model's positions."""
    lengths = [src.shape[1]] * len(src) if mask is None else (~mask).sum(1).tolist()
    if max_length is None:
        limits = [default_limit(n) for n in lengths]
    else:
        limits = [max_length] * len(src) if isinstance(max_length, int) else list(max_length)
    positions = getattr(model, "max_length", None)
    return [min(n, positions - 1) for n in limits] if isinstance(positions, int) else limits


def check_tokens(name: str, tokens: Tensor, num_tokens: int) -> None:
    """Refuses tokens that a vocabulary does not have.

    Raises:
        InputError: there is such a token.
    """
    wrong = tokens[(tokens < 0) | (tokens >= num_tokens)]
    if len(wrong):
        raise InputError(
            f"{name} has token {int(wrong[0])}, and the model's vocabulary is 0 to {num_tokens - 1}: encode the "
            "text with the vocabulary that the model was trained with."
        )


def check_special_tokens(task: Task, num_tokens: int, beam: int = 1) -> None:
    """Refuses special tokens that are not in the target's vocabulary, and more beams than it has tokens.

    Raises:
        InputError: one of them is not, or there are.
    """
    for name in ("bos", "eos", "pad"):
        token = getattr(task, name)
        if token is not None and not 0 <= token < num_tokens:
            raise InputError(
                f"{name}={token}, and the model's target vocabulary is 0 to {num_tokens - 1}."
            )
    if beam > num_tokens:
        raise InputError(
            f"beam={beam} is more than the {num_tokens} tokens of the vocabulary: pass a smaller one, such as 4."
        )


def check_finite(values: list[list[float]]) -> None:
    """Refuses scores that are no numbers.

    Raises:
        InputError: there is one.
    """
    if any(math.isnan(value) for row in values for value in row):
        raise InputError(
            "the model's logits are not finite: its weights or inputs are not, or a mask hides everything."
        )
