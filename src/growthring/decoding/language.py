"""Text from a language model of the signature `model(tokens)`: one token after the other.

Axes: T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from growthring.decoding.checks import check_finite, check_tokens
from growthring.decoding.modes import device_of, evaluating
from growthring.decoding.ranking import logits_of
from growthring.decoding.steps import remembers
from growthring.errors import InputError


def generate(
    model: nn.Module,
    prompt: Tensor,
    *,
    num_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    context: int | None = None,
    use_cache: bool = True,
) -> Iterator[int]:
    """Yields the tokens that follow a prompt, each as soon as it is known.

    Where the text gets longer than the context, the model goes on from the later half of what it sees.

    Args:
        model: maps tokens (1, T) to logits (1, T, V), or to an object with `.logits`. One with `start_decoding` and
            `continue_decoding`, as `zoo.GPT`, computes one position at a step. It is run in eval mode.
        prompt: (T,) tokens, at least one.
        num_tokens: how many follow.
        temperature: 0 takes the likeliest token; below 1 likely ones come more often than the model says.
        top_k: only so many of the likeliest tokens.
        top_p: only the likeliest that together have this probability.
        generator: on the model's device; torch's default one if None.
        context: most tokens that the model reads; by default its `block_size`, or what its `config` says, if it has
            one.
        use_cache: whether a model's own steps are used. Without, it does the same by `forward`.

    Raises:
        InputError: an argument does not fit; at the call, before the first token.

    Example:
        >>> from growthring import zoo
        >>> model = zoo.GPT(vocab_size=9, block_size=8, num_layers=1, num_heads=2, width=8)
        >>> len(list(generate(model, torch.tensor([1, 2]), num_tokens=20)))
        20
    """
    context = _context_of(model) if context is None else context
    is_whole = not prompt.is_floating_point() and prompt.dtype != torch.bool
    if prompt.dim() != 1 or not is_whole or not len(prompt):
        raise InputError(
            f"prompt has shape {tuple(prompt.shape)} of {prompt.dtype}: pass whole numbers (T,), at least one."
        )
    for name, value, fits in (
        ("num_tokens", num_tokens, num_tokens >= 0),
        ("temperature", temperature, 0 <= temperature < math.inf),
        ("top_k", top_k, top_k is None or top_k >= 1),
        ("top_p", top_p, top_p is None or 0 < top_p <= 1),
        ("context", context, context is None or context >= 2),
    ):
        if not fits:
            raise InputError(f"{name}={value}: {_MEANING[name]}.")
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    if sizes:  # which of them is that of tokens, the model alone knows
        check_tokens("prompt", prompt, max(sizes))
    text = prompt.to(device_of(model), torch.long)

    def follow() -> Iterator[int]:
        reader = _Reader(model, text, context, use_cache)
        for _ in range(num_tokens):
            token = _choose(reader.logits(), temperature, top_k, top_p, generator)
            reader.add(token)
            yield int(token)

    return follow()


_MEANING = {
    "num_tokens": "it is how many tokens follow, 0 or more",
    "temperature": "it is 0, for the likeliest token each time, or more, such as 0.8",
    "top_k": "it is how many of the likeliest tokens there are to choose from, at least 1",
    "top_p": "it is a probability, above 0 and up to 1",
    "context": "a model reads at least 2 tokens",
}


def _context_of(model: nn.Module) -> int | None:
    """The longest text of a model, if it says so: one of growthring.zoo, or of transformers."""
    config = getattr(model, "config", None)
    for holder, name in ((model, "block_size"), (config, "max_position_embeddings")):
        if isinstance(found := getattr(holder, name, None), int):
            return found
    return None


class _Reader:
    """A model and the part of a text that it sees."""

    def __init__(
        self, model: nn.Module, text: Tensor, context: int | None, use_cache: bool
    ) -> None:
        self._model, self._context = model, context
        self._seen = text if context is None else text[-context:]
        self._has_cache = use_cache and remembers(model)
        self._cache = None
        self._num_read = 0

    def logits(self) -> Tensor:
        """Of the next token (V,)."""
        model = self._model
        with evaluating(model):
            if not self._has_cache:
                return logits_of(model(self._seen[None]))[0, -1]
            if self._cache is None:
                self._cache, self._num_read = model.start_decoding(), 0  # type: ignore[operator]
            new = self._seen[None, self._num_read :]
            self._num_read = len(self._seen)
            return model.continue_decoding(new, self._cache)[0]  # type: ignore[operator]

    def add(self, token: Tensor) -> None:
        """Puts a token at the end; of a full context only the later half stays."""
        self._seen = torch.cat([self._seen, token.view(1)])
        if self._context is not None and len(self._seen) > self._context:
            self._seen, self._cache = self._seen[-(self._context // 2) :], None


def _choose(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:
    """One token of logits (V,)."""
    best = logits.max()
    check_finite([[float(best - best)]])  # nan of infinity, too
    if temperature == 0:
        return logits.argmax()
    # A temperature may be too small a number for float32.
    scores, order = logits.double().sort(descending=True, stable=True)
    shares = ((scores - scores[0]) / temperature).softmax(0)
    if top_k is not None:
        shares[top_k:] = 0
    if top_p is not None:
        before = shares.cumsum(0) - shares
        shares[before >= top_p * shares.sum()] = 0  # the first one stays: nothing comes before it
    return order[torch.multinomial(shares, 1, generator=generator)[0]]
