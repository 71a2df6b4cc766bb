"""Greedy decoding and beam search: against each other, an exhaustive search, and with and without a cache."""

import itertools
import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from growthring.decoding import beam_search, greedy
from growthring.decoding.hypotheses import SentenceSearch
from growthring.errors import InputError
from tests.decoding.models import (
    BOS,
    EOS,
    PAD,
    SPECIAL,
    VOCAB,
    Fixed,
    Table,
    sentences,
    transformer,
)

SRC = torch.tensor([[5, 6, EOS]])
NO = -math.inf


def tokens(found):
    return [hypothesis.tokens for hypothesis in found]


class Own(nn.Module):
    """A user's model: the signature of the zoo's, none of its methods."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, src: Tensor, tgt: Tensor, src_padding_mask: Tensor | None = None) -> Tensor:
        return self.model(src, tgt, src_padding_mask)


# --- with and without a cache ---


@pytest.mark.parametrize("beam", [1, 2, 4, 7])
@pytest.mark.parametrize("seed", range(3))
def test_a_cache_changes_no_token(beam, seed, generator):
    model = transformer(seed)
    src, mask = sentences([7, 3, 1, 5, 9], generator)
    cached = beam_search(model, src, mask, beam=beam, **SPECIAL)
    plain = beam_search(model, src, mask, beam=beam, use_cache=False, **SPECIAL)
    own = beam_search(Own(model), src, mask, beam=beam, max_length=None, **SPECIAL)
    assert tokens(cached) == tokens(plain) == tokens(own)
    assert any(tokens(cached))
    for a, b in zip(cached, plain, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-4)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_sentence_is_translated_as_by_itself(beam, generator):
    model = transformer(3).double()
    lengths = [7, 3, 1, 5]
    src, mask = sentences(lengths, generator)
    together = tokens(beam_search(model, src, mask, beam=beam, **SPECIAL))
    alone = [
        tokens(beam_search(model, row[None, :length], beam=beam, **SPECIAL))[0]
        for row, length in zip(src, lengths, strict=True)
    ]
    assert together == alone


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_of_one_is_greedy(seed, use_cache, generator):
    model = transformer(seed)
    src, mask = sentences([7, 3, 1, 5], generator)
    one = beam_search(model, src, mask, beam=1, use_cache=use_cache, **SPECIAL)
    assert one == greedy(model, src, mask, use_cache=use_cache, **SPECIAL)


def test_beams_of_one_are_greedy_with_many_random_models():
    for seed in range(30):
        model = Table(9, [2, 3, 4, 5], seed)
        assert beam_search(model, SRC, beam=1, **SPECIAL) == greedy(model, SRC, **SPECIAL)


def test_the_model_itself_agrees_with_the_log_probability(generator):
    model = transformer().eval().requires_grad_(False)
    src, mask = sentences([7, 3], generator)
    for i, found in enumerate(beam_search(model, src, mask, beam=3, **SPECIAL)):
        target = torch.tensor([[BOS, *found.tokens, EOS]])
        logits = model(src[i : i + 1], target[:, :-1], mask[i : i + 1])
        log_probs = logits.log_softmax(-1).gather(2, target[:, 1:, None])
        assert found.log_prob == pytest.approx(float(log_probs.sum()), abs=1e-4)
        assert found.score == pytest.approx(found.log_prob / (len(found.tokens) + 1))


# --- against all there is ---


def exhaustive(model: Table, limit: int, length_penalty: float) -> tuple[float, list[int]]:
    """The best of all translations of at most so many tokens."""
    words = [t for t in model.usable if t not in SPECIAL.values()]
    found = []
    for length in range(limit + 1):
        for sequence in itertools.product(words, repeat=length):
            target = [BOS, *sequence, EOS]
            steps = [
                model.logits(int(SRC[0, 0]), tuple(target[:i])).log_softmax(0)[target[i]].item()
                for i in range(1, len(target))
            ]
            found.append((sum(steps) / len(steps) ** length_penalty, list(sequence)))
    return max(found)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("seed", range(8))
def test_a_wide_beam_finds_the_best_of_all(seed, length_penalty):
    # three words, up to three of them: 40 translations, and a vocabulary that allows as many beams
    model = Table(40, [EOS, 3, 4, 5], seed, scale=2.0)
    score, words = exhaustive(model, 3, length_penalty)
    options = {"max_length": 3, "length_penalty": length_penalty, **SPECIAL}
    (found,) = beam_search(model, SRC, beam=40, **options)
    assert (found.tokens, found.score) == (words, pytest.approx(score, rel=1e-5))
    (narrow,) = beam_search(model, SRC, beam=2, **options)
    assert narrow.score <= found.score + 1e-6


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 1.7, -0.5])
@pytest.mark.parametrize("beam", [2, 4])
def test_stopping_early_changes_nothing(beam, length_penalty, monkeypatch):
    stopped, calls = [], 0
    models = [Table(9, [2, 3, 4, 5, 6], seed, scale=2.0) for seed in range(25)]
    options = {"beam": beam, "max_length": 6, "length_penalty": length_penalty, **SPECIAL}
    original = SentenceSearch._cannot_win

    def counted(self, *arguments):
        nonlocal calls
        calls += original(self, *arguments)
        return original(self, *arguments)

    monkeypatch.setattr(SentenceSearch, "_cannot_win", counted)
    stopped = [beam_search(model, SRC, **options) for model in models]
    monkeypatch.setattr(SentenceSearch, "_cannot_win", lambda self, *arguments: False)
    assert stopped == [beam_search(model, SRC, **options) for model in models]
    assert calls  # it did stop early


# --- ends ---


def test_eos_ends_a_sentence_and_is_not_in_it():
    model = Fixed([[NO, NO, 0.0, 1.0], [NO, NO, 5.0, 0.0]])
    for found in (greedy(model, SRC, **SPECIAL), beam_search(model, SRC, beam=2, **SPECIAL)):
        assert tokens(found) == [[3]]
        assert not found[0].is_cut


def test_a_sentence_may_be_empty():
    model = Fixed([[NO, NO, 5.0, 0.0]])
    (found,) = beam_search(model, SRC, beam=2, **SPECIAL)
    assert found.tokens == []
    assert found.log_prob == found.score == pytest.approx(-math.log1p(math.exp(-5)), rel=1e-5)


def test_an_end_out_of_the_beam_does_not_count():
    # eos is the second most probable: a beam of one must not take it, a beam of two does
    model = Fixed([[NO, NO, 0.9, 1.0], [NO, NO, -50.0, 0.0], [NO, NO, 0.0, -50.0]])
    assert tokens(beam_search(model, SRC, beam=1, length_penalty=0.0, **SPECIAL)) == [[3, 3]]
    assert tokens(beam_search(model, SRC, beam=2, length_penalty=-2.0, **SPECIAL)) == [[]]


def test_neither_bos_nor_padding_comes():
    model = Fixed([[9.0, 9.0, 0.0, 1.0], [9.0, 9.0, 1.0, 0.0]])
    assert tokens(beam_search(model, SRC, beam=4, **SPECIAL)) == [[3]]
    assert tokens(greedy(model, SRC, **SPECIAL)) == [[3]]
    # what they would have got counts: the score is the model's own
    assert greedy(model, SRC, **SPECIAL)[0].log_prob < -10


def test_bos_and_eos_may_be_one_token():
    model = Fixed([[NO, NO, 0.0, 1.0], [NO, NO, 5.0, 0.0]])
    assert tokens(beam_search(model, SRC, beam=2, bos=2, eos=2)) == [[3]]


# with more beams, prefixes that end on the way would fill the search of a model with a single word
both = pytest.mark.parametrize(
    "decode", [greedy, partial(beam_search, beam=1)], ids=["greedy", "beam"]
)


@both
def test_a_sentence_has_at_most_max_length_tokens(decode):
    model = Fixed([[NO, NO, -9.0, 1.0]])
    (found,) = decode(model, SRC, max_length=5, **SPECIAL)
    assert found.tokens == [3] * 5
    assert found.is_cut
    assert found.log_prob == pytest.approx(5 * -math.log1p(math.exp(-10)) - 10, abs=1e-3)


@both
def test_the_default_length_follows_each_sentence(decode):
    src = torch.tensor([[5, 6, EOS], [5, EOS, PAD]])
    found = decode(Fixed([[NO, NO, -9.0, 1.0]]), src, src == PAD, **SPECIAL)
    assert [len(f.tokens) for f in found] == [2 * 3 + 10, 2 * 2 + 10]


@both
def test_each_sentence_may_have_a_length_of_its_own(decode):
    found = decode(Fixed([[NO, NO, -9.0, 1.0]]), SRC.repeat(3, 1), max_length=[4, 1, 7], **SPECIAL)
    assert [len(f.tokens) for f in found] == [4, 1, 7]


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("decode", [greedy, beam_search])
def test_no_sentence_is_longer_than_the_model_has_positions(decode, use_cache):
    model = transformer(max_length=6)
    with torch.no_grad():
        model.output.bias[EOS] = -1e4
    (found,) = decode(model, SRC, use_cache=use_cache, max_length=50, **SPECIAL)
    assert len(found.tokens) == 5
    assert found.is_cut


@pytest.mark.parametrize("decode", [greedy, beam_search])
def test_a_model_that_never_ends_is_cut(decode):
    (found,) = decode(Fixed([[NO, NO, NO, 1.0]]), SRC, max_length=3, **SPECIAL)
    assert (found.tokens, found.log_prob, found.is_cut) == ([3] * 3, NO, True)


@pytest.mark.parametrize("decode", [greedy, beam_search])
def test_a_model_that_allows_nothing_else_than_padding_ends(decode):
    (found,) = decode(Fixed([[NO, NO, NO, 1.0], [0.0, NO, NO, NO]]), SRC, **SPECIAL)
    assert (found.tokens, found.log_prob, found.is_cut) == ([3], NO, False)


# --- ties ---


def test_of_equal_tokens_the_first_is_taken():
    model = Fixed([[0.0, 0.0, -60.0, *[0.0] * 47], [*[-60.0] * 2, 60.0, *[-60.0] * 47]])
    assert tokens(greedy(model, SRC, **SPECIAL)) == [[3]]
    for beam in (1, 2, 5):
        assert tokens(beam_search(model, SRC, beam=beam, **SPECIAL)) == [[3]]


def test_of_equal_sentences_the_one_that_ended_first_is_taken():
    model = Fixed([[NO, NO, 0.0, 0.0], [NO, NO, 100.0, 0.0]])
    assert tokens(beam_search(model, SRC, beam=2, length_penalty=0.0, **SPECIAL)) == [[]]


# --- modes ---


def test_the_modes_of_all_modules_are_as_before(generator):
    model = transformer(dropout=0.5).train()
    model.encoder[0].eval()
    before = [module.training for module in model.modules()]
    src, mask = sentences([5, 3], generator)
    found = beam_search(model, src, mask, **SPECIAL)
    assert found == beam_search(model, src, mask, **SPECIAL)  # no dropout
    assert before == [module.training for module in model.modules()]
    assert torch.is_grad_enabled()
    with pytest.raises(InputError, match="beam=14"):
        beam_search(model, src, mask, beam=14, **SPECIAL)
    assert before == [module.training for module in model.modules()]


def test_no_sentences_no_translations():
    assert beam_search(transformer(), torch.zeros(0, 3, dtype=torch.long), **SPECIAL) == []
    assert greedy(transformer(), torch.zeros(0, 3, dtype=torch.long), **SPECIAL) == []


def test_half_precision_decodes(generator):
    src, mask = sentences([5, 3], generator)
    found = beam_search(transformer().bfloat16(), src, mask, **SPECIAL)
    assert all(math.isfinite(f.score) for f in found)


# --- refusals ---

BAD = {
    "beam": ({"beam": 0}, "beam=0: pass how many prefixes live at a time, at least 1"),
    "vocabulary": ({"beam": 14}, "beam=14 is more than the 13 tokens of the vocabulary"),
    "length": ({"max_length": 0}, "max_length=0: a translation needs room"),
    "lengths": ({"max_length": [3, 0]}, "max_length=0: a translation needs room"),
    "count": ({"max_length": [3, 4]}, "max_length has 2 numbers for 1 sentence: pass one for each"),
    "penalty": ({"length_penalty": math.nan}, "length_penalty=nan: pass a power"),
    "eos": ({"eos": 13}, "eos=13, and the model's target vocabulary is 0 to 12"),
    "bos": ({"bos": -1}, "bos=-1, and the model's target vocabulary"),
    "no tokens": ({"src": SRC[:, :0]}, "src has no tokens: every sentence needs at least one"),
    "shape": ({"src": SRC[0]}, r"src has shape \(3,\) of torch.int64: pass whole numbers"),
    "type": ({"src": SRC.float()}, "of torch.float32: pass whole numbers"),
    "source": ({"src": SRC + 8}, "src has token 13, and the model's vocabulary is 0 to 12"),
    "mask": ({"src_padding_mask": SRC == 5, "src": SRC[:, :2]}, "True at padding"),
    "empty": ({"src_padding_mask": SRC > 0}, "1 sentence of src, the first at 0, is all padding"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD.keys())
def test_what_does_not_fit_is_refused(changes, message):
    given = {"src": SRC, "src_padding_mask": None, **SPECIAL} | changes
    with pytest.raises(InputError, match=message):
        beam_search(transformer(), **given)


def test_models_that_give_no_logits_are_refused():
    with pytest.raises(InputError, match="logits are not finite"):
        beam_search(Fixed([[math.nan] * 9]), SRC, **SPECIAL)
    with pytest.raises(InputError, match=r"shape \(1, 13\) where decoding needs logits"):
        beam_search(Own(lambda *_: torch.zeros(1, VOCAB)), SRC, **SPECIAL)  # type: ignore[arg-type]
