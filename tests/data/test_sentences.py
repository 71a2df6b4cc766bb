"""Batches of sentences: each once an epoch, about equal tokens, padding right, resumed anywhere."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings, strategies as st

from growthring.data import DataError, Pairs, SentenceBatches, encode_pairs, load_pairs
from growthring.data.sentences import _BLOCK, IGNORED, Ragged, SentenceData, _bucket_widths
from growthring.data.vocabulary import BOS, EOS, PAD, train_vocabulary
from growthring.errors import InputError

VOCABULARY = train_vocabulary(["ein Hund läuft", "a dog runs"], 270)


def data_of(lengths):
    """Sentences of so many source and target tokens; the first source token is the sentence's number."""
    sources = [[3 + n, *(7,) * (s - 2), EOS][-max(s, 2) :] for n, (s, _) in enumerate(lengths)]
    targets = [[BOS, *range(3, 1 + t), EOS] for _, t in lengths]
    pairs = Pairs("made", [f"s{n}" for n in range(len(lengths))], ["t"] * len(lengths))
    return SentenceData("made", Ragged.of(sources), Ragged.of(targets), pairs, VOCABULARY, 200)


def random_data(count=300, seed=0):
    source = random.Random(seed)
    lengths = [min(90, 2 + round(source.lognormvariate(2.6, 0.6))) for _ in range(count)]
    return data_of([(n, max(2, n + source.randint(-3, 5))) for n in lengths])


def stream(data, size, seed: int | None = 0):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return SentenceBatches(data, size, generator)


def numbers(batch):
    return [row - 3 for row in batch[0][0][:, 0].tolist()]


def same(a, b):
    return len(a) == len(b) and all(
        x.equal(y)
        for (i, j), (k, m) in zip(a, b, strict=True)
        for x, y in zip((*i, j), (*k, m), strict=True)
    )


LENGTHS = st.lists(st.tuples(st.integers(2, 60), st.integers(2, 60)), min_size=1, max_size=60)


@given(LENGTHS, st.integers(1, 20), st.one_of(st.none(), st.integers(0, 5)))
@settings(max_examples=25)
def test_each_sentence_is_in_an_epoch_once(lengths, size, seed):
    batches = stream(data_of(lengths), size, seed)
    for _ in range(2):
        found = [n for batch in batches for n in numbers(batch)]
        assert sorted(found) == list(range(len(lengths)))


@given(LENGTHS, st.integers(1, 20), st.integers(0, 5))
@settings(max_examples=25)
def test_the_number_of_batches_does_not_depend_on_their_order(lengths, size, seed):
    data = data_of(lengths)
    counts = {len(list(stream(data, size, s))) for s in (None, seed, seed + 1)}
    assert counts == {len(stream(data, size))}


@given(LENGTHS, st.integers(1, 20))
@settings(max_examples=25)
def test_padding_stands_where_there_is_no_token(lengths, size):
    data = data_of(lengths)
    for (source, target, padding), following in stream(data, size):
        assert source.dtype == target.dtype == following.dtype == torch.int64
        for row, n in enumerate(numbers(((source, target, padding), following))):
            s, t = (int(ragged.lengths[n]) for ragged in (data.sources, data.targets))
            own = data.targets.values[data.targets.ends[n] : data.targets.ends[n + 1]].tolist()
            assert source[row, s - 1] == EOS and (source[row, s:] == PAD).all()
            assert padding[row].tolist() == [False] * s + [True] * (source.shape[1] - s)
            assert target[row, : t - 1].tolist() == own[:-1] and target[row, 0] == BOS
            assert following[row, : t - 1].tolist() == own[1:] and following[row, t - 2] == EOS
            assert (following[row, t - 1 :] == IGNORED).all()
        assert not padding.all(1).any()  # else attention has nothing to read
        assert source.shape[1] == int((~padding).sum(1).max())  # no wider than needed


def test_batches_hold_about_equal_tokens_and_little_padding():
    data = random_data(2000)
    mean = data.targets.lengths.double().mean()
    sizes, padded, full = [], 0, 0
    for (source, target, padding), _ in stream(data, 16):
        sizes.append(target.numel())
        padded += int(padding.sum())
        full += source.numel()
    middle = sorted(sizes)[len(sizes) // 2]
    assert 0.7 * 16 * mean < middle < 1.3 * 16 * mean
    assert max(sizes) < 1.6 * 16 * mean and padded / full < 0.15
    alone = sum(size < 0.5 * middle for size in sizes)  # the last of each length
    assert alone < 0.15 * len(sizes)


def test_an_epochs_order_is_its_own():
    batches = stream(random_data(), 8)
    first, second = ([n for batch in batches for n in numbers(batch)] for _ in range(2))
    assert first != second and sorted(first) == sorted(second)
    lengths = [int(batch[0][1].shape[1]) for batch in stream(random_data(), 8)]
    assert lengths != sorted(lengths)
    again = stream(random_data(), 8)
    assert [n for batch in again for n in numbers(batch)] == first


def test_without_a_generator_they_come_by_length_and_always_so():
    data = random_data()
    batches = stream(data, 8, None)
    first, second = list(batches), list(batches)
    assert same(first, second)
    widths = _bucket_widths(torch.maximum(data.sources.lengths, data.targets.lengths - 1))
    found = [int(widths[n]) for batch in first for n in numbers(batch)]
    assert found == sorted(found)


@given(st.data())
@settings(max_examples=20)
def test_they_resume_bit_for_bit_at_any_batch_whatever_the_stages(data):
    """A state that was saved anywhere, with batch sizes that change at any batch, also within an epoch."""
    made = random_data(80, seed=data.draw(st.integers(0, 3)))
    total = data.draw(st.integers(3, 40))
    at = data.draw(st.integers(0, total - 1))
    changes = data.draw(st.dictionaries(st.integers(0, total - 1), st.integers(1, 16), max_size=3))

    def run(batches, start, end):
        found = []
        endless = itertools.chain.from_iterable(iter(lambda: batches, None))
        for step in range(start, end):
            if step in changes:
                batches.set_batch_size(changes[step])
            found.append(next(endless))
        return found

    whole = run(stream(made, 4, 1), 0, total)
    first = stream(made, 4, 1)
    before = run(first, 0, at)
    again = stream(made, 4, 77)
    again.load_state_dict(first.state_dict())
    assert same(before + run(again, at, total), whole)


def test_a_size_that_changes_in_mid_epoch_loses_and_repeats_nothing():
    batches = stream(random_data(), 4)
    found = []
    for step, batch in enumerate(batches):
        found += numbers(batch)
        if step in (3, 9, 20):
            batches.set_batch_size((16, 1, 7)[(3, 9, 20).index(step)])
    assert sorted(found) == list(range(300))


def test_examples_of_whole_epochs_are_counted_exactly():
    batches = stream(random_data(), 8)
    assert batches.count_examples([(2 * len(batches), 8)]) == 600
    double = stream(random_data(), 8)
    double.set_batch_size(16)
    assert batches.count_examples([(len(batches), 8), (3 * len(double), 16)]) == 4 * 300
    some = batches.count_examples([(len(batches) // 2, 8)])
    assert 140 <= some <= 160


def test_a_batch_so_small_that_no_sentence_fits_has_one():
    batches = stream(data_of([(4, 4)] * 20 + [(80, 80)]), 1)
    sizes = [len(batch[1]) for batch in batches]
    assert min(sizes) == 1 and sum(sizes) == 21


def test_a_batch_cannot_be_larger_than_the_sentences_of_a_length_that_stay_together():
    batches = stream(random_data(), 4)
    batches.set_batch_size(4 * _BLOCK)
    with pytest.raises(InputError, match=r"batch_size=17: of sentences .* up to 4 times .* \(4\)"):
        batches.set_batch_size(17)
    assert batches.batch_size == 16


def test_a_state_of_another_vocabulary_is_refused():
    data = random_data()
    state = stream(data, 4).state_dict()
    other = train_vocabulary(["anders"], 262)
    theirs = SentenceData("made", data.sources, data.targets, data.pairs, other, 200)
    batches = stream(theirs, 4)
    words = (
        f"begun with another vocabulary .{VOCABULARY.fingerprint}, this one is {other.fingerprint}"
    )
    with pytest.raises(InputError, match=words):
        batches.load_state_dict(state)
    with pytest.raises(InputError, match="this data has 299"):
        stream(random_data(299), 4).load_state_dict(state)


def test_a_fork_leaves_the_stream_where_it_is():
    batches = stream(random_data(), 4)
    whole = [numbers(batch) for batch in stream(random_data(), 4)]
    found = []
    for batch in batches:
        found.append(numbers(batch))
        if len(found) == 5:
            twin = batches.fork(9)
            assert sorted(n for one in twin for n in numbers(one)) == list(range(300))
    assert found == whole


# Texts.

SHORT, LONG = "ein Hund", "ein sehr langer Satz mit vielen Wörtern"


def encoded(pairs, most, is_training):
    return encode_pairs(
        Pairs("p", *map(list, zip(*pairs, strict=True))), VOCABULARY, most, is_training
    )


def test_long_pairs_are_left_out_of_training_and_cut_in_tests():
    pairs = [(SHORT, "a dog"), (LONG, "a dog"), (SHORT, LONG)]
    found = encoded(pairs, 12, True)
    assert len(found) == 1 and found.pairs.sources == [SHORT] and found.max_length == 12
    assert found.notes == ("2 pairs of 'p' longer than max_length=12 tokens left out.",)
    found = encoded(pairs, 12, False)
    assert len(found) == 3 and found.pairs.targets[2] == LONG  # judged by the whole sentence
    assert int(found.sources.lengths.max()) == int(found.targets.lengths.max()) == 12
    assert all(
        int(row[-1]) == EOS for row in found.sources.values.split(found.sources.lengths.tolist())
    )
    assert found.notes == ("2 pairs of 'p' longer than max_length=12 tokens cut.",)
    assert encoded(pairs, 100, True).notes == encoded(pairs, 100, False).notes == ()


def test_only_long_pairs():
    with pytest.raises(
        DataError, match=r"all sentences of 'p' are longer than max_length=5 tokens"
    ):
        encoded([(LONG, LONG)], 5, True)


def test_the_texts_come_back():
    pairs = load_pairs("numbers", None, "de", "en").test
    data = encode_pairs(pairs, VOCABULARY, 200, False)
    rows = data.sources.values.split(data.sources.lengths.tolist())
    assert [VOCABULARY.decode(row.tolist()) for row in rows] == list(pairs.sources)


def test_what_is_left_out_is_said_by_the_stream():
    pairs = Pairs("p", ["a", LONG], ["b", "c"], ("1 pair of 'p' with an empty line left out.",))
    notes = SentenceBatches(encode_pairs(pairs, VOCABULARY, 12, True), 2, None).notes
    assert notes == (*pairs.notes, "1 pair of 'p' longer than max_length=12 tokens left out.")
