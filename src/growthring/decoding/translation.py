"""Greedy decoding and beam search for models of the signature `model(src, tgt, src_padding_mask)`.

Axes: B sentences, K beams, N = B · K rows, S source tokens, V target vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from growthring.decoding.checks import Task, check_finite, check_special_tokens, make_task
from growthring.decoding.hypotheses import Hypothesis, SentenceSearch
from growthring.decoding.modes import evaluating
from growthring.decoding.ranking import best, log_probabilities
from growthring.decoding.steps import Decoder, make_decoder
from growthring.errors import InputError


def greedy(
    model: nn.Module,
    src: Tensor,
    src_padding_mask: Tensor | None = None,
    *,
    bos: int,
    eos: int,
    pad: int | None = None,
    max_length: int | Sequence[int] | None = None,
    length_penalty: float = 1.0,
    use_cache: bool = True,
) -> list[Hypothesis]:
    """Translates by the most probable next token, again and again; as `beam_search` with `beam=1`.

    The arguments are those of `beam_search`; `length_penalty` decides nothing but the scores.

    Returns:
        A hypothesis for each sentence.

    Raises:
        InputError: an argument does not fit.

    Example:
        >>> from growthring import zoo
        >>> model = zoo.Transformer(9, 9, d_model=8, num_heads=2, d_embed=8)
        >>> found = greedy(model, torch.tensor([[3, 4, 2]]), bos=1, eos=2, pad=0, max_length=5)
        >>> len(found), len(found[0].tokens) <= 5
        (1, True)
    """
    task = make_task(model, src, src_padding_mask, bos, eos, pad, max_length, length_penalty)
    if not len(task.src):
        return []
    with evaluating(model):
        return _greedy(make_decoder(model, task.src, task.mask, use_cache), task)


def beam_search(
    model: nn.Module,
    src: Tensor,
    src_padding_mask: Tensor | None = None,
    *,
    bos: int,
    eos: int,
    pad: int | None = None,
    beam: int = 4,
    max_length: int | Sequence[int] | None = None,
    length_penalty: float = 1.0,
    use_cache: bool = True,
) -> list[Hypothesis]:
    """Translates by beam search, all sentences of a batch at once.

    Hypotheses are ranked by log P / length ** length_penalty (plain length normalisation, not GNMT's), with
    eos in both. Of equal scores the one of the better prefix wins, then the lower token. The search for a
    sentence stops early only where nothing can change its result.

    Args:
        model: maps source (B, S), target (B, T) and, if there is one, the mask to logits (B, T, V). A model with
            `start_decoding` and `continue_decoding`, as `zoo.Transformer`, computes one position at a step;
            any other is run over the whole target at each step. It is run in eval mode.
        src: (B, S) tokens.
        src_padding_mask: (B, S), True at padding.
        bos: the token that a translation starts from; comes nowhere in it.
        eos: the token that ends it.
        pad: the token of padding, if there is one; comes nowhere in it.
        beam: how many prefixes live at a time.
        max_length: most tokens of a translation, eos not counted, of all or of each; then only eos may follow. By
            default twice the sentence's own length and 10; never more than the model's `max_length` has positions
            for.
        length_penalty: 1.0 ranks by the mean log-probability of a token, 0.0 by their sum; more favours long ones.
        use_cache: whether a model's own steps are used. Without, it does the same by `forward`.

    Returns:
        The best hypothesis for each sentence.

    Raises:
        InputError: an argument does not fit.

    Example:
        >>> from growthring import zoo
        >>> model = zoo.Transformer(9, 9, d_model=8, num_heads=2, d_embed=8)
        >>> src = torch.tensor([[3, 4, 2], [5, 2, 0]])
        >>> found = beam_search(model, src, src == 0, bos=1, eos=2, pad=0)
        >>> len(found), {0, 1, 2} & {token for sentence in found for token in sentence.tokens}
        (2, set())
    """
    if beam < 1:
        raise InputError(f"beam={beam}: pass how many prefixes live at a time, at least 1.")
    task = make_task(model, src, src_padding_mask, bos, eos, pad, max_length, length_penalty)
    if not len(task.src):
        return []
    with evaluating(model):
        return _beam_search(make_decoder(model, task.src, task.mask, use_cache), task, beam)


def _greedy(decoder: Decoder, task: Task) -> list[Hypothesis]:
    found: dict[int, Hypothesis] = {}
    active = [(i, list[int](), 0.0) for i in range(len(task.src))]  # sentence, tokens, log P
    tokens = task.src.new_full((len(active),), task.bos)
    for length in itertools.count():
        closing = [task.limits[i] == length for i, _, _ in active]
        values, places = best(_next(decoder, tokens, task, closing, None if length else 1), 1)
        check_finite(values.tolist())
        rows = []
        chosen = zip(active, values[:, 0].tolist(), places[:, 0].tolist(), strict=True)
        for row, ((i, before, log_prob), value, token) in enumerate(chosen):
            log_prob += value
            if token == task.eos or log_prob == -math.inf:
                score = task.score(log_prob, length)
                found[i] = Hypothesis(before, score, log_prob, length == task.limits[i])
            else:
                active[row] = (i, [*before, token], log_prob)
                rows.append(row)
        if not rows:
            return [found[i] for i in range(len(found))]
        if len(rows) < len(active):
            active = [active[row] for row in rows]
            places, left = places[rows], torch.tensor(rows, device=tokens.device)
            decoder.select(left, left)
        tokens = places[:, 0]
    raise AssertionError  # every sentence has a limit


def _beam_search(decoder: Decoder, task: Task, beam: int) -> list[Hypothesis]:
    searches = [SentenceSearch(task, limit, beam) for limit in task.limits]
    active, device = searches, task.src.device
    tokens = task.src.new_full((len(active),), task.bos)
    for length in itertools.count():
        width = len(tokens) // len(active)  # 1 at first, then `beam`
        closing = [search.limit == length for search in active for _ in range(width)]
        found = _next(decoder, tokens, task, closing, beam if length == 0 else None)
        values, places = (x.tolist() for x in best(found, min(2 * beam, found.shape[1])))
        check_finite(values)
        spans = [slice(i * width, (i + 1) * width) for i in range(len(active))]
        going = [s.advance(values[at], places[at]) for s, at in zip(active, spans, strict=True)]
        left = [i for i, rows in enumerate(going) if rows]
        if not left:
            break
        parents = [i * width + row.parent for i in left for row in going[i]]
        if parents != list(range(len(tokens))):
            kept = None if len(left) == len(active) else torch.tensor(left, device=device)
            decoder.select(torch.tensor(parents, device=device), kept)
        active = [active[i] for i in left]
        tokens = torch.tensor([row.token for i in left for row in going[i]], device=device)
    return [search.best for search in searches if search.best is not None]


def _next(
    decoder: Decoder, tokens: Tensor, task: Task, closing: Sequence[bool], beam: int | None
) -> Tensor:
    """Log-probabilities (N, V) of the tokens after those of each row (N,); of eos only where rows close.

    `beam` is given at the first step: now the vocabulary is known, and what depends on it is checked.
    """
    logits = decoder.next(tokens)
    if beam is not None:
        check_special_tokens(task, logits.shape[1], beam)
    found = log_probabilities(logits, task.banned)
    if any(closing):
        rows = torch.tensor(closing, device=found.device)
        end = found[rows, task.eos]
        found[rows] = -torch.inf
        found[rows, task.eos] = end
    return found
