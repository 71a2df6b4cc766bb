"""Shares of batches: what several processes have together is what one has, and each knows where all are."""

import pytest
import torch

from growthring.data import Pairs, SentenceBatches, TextBatches, TextData, encode_pairs
from growthring.data.shares import Share
from growthring.data.vocabulary import train_vocabulary
from tests.data.test_stream import build, images  # noqa: F401 - a fixture


def texts():
    values = torch.arange(100, dtype=torch.uint8)
    return TextBatches(TextData("abc", values), 4, 8, torch.Generator().manual_seed(1))


def sentences():
    sources = [" ".join(["Hund"] * (1 + n % 5)) for n in range(17)]
    pairs = Pairs("some", sources, [s.replace("Hund", "dog") for s in sources])
    vocabulary = train_vocabulary([*pairs.sources, *pairs.targets], 300)
    data = encode_pairs(pairs, vocabulary, 50, is_training=True)
    return SentenceBatches(data, 3, torch.Generator().manual_seed(1))


@pytest.fixture(params=["memory", "memory, share", "folder", "folder, share", "text", "sentences"])
def make(request, images):  # noqa: F811
    def made():
        if request.param == "text":
            return texts()
        if request.param == "sentences":
            return sentences()
        stream = build(request.param.split(",")[0], images)
        if "share" in request.param:
            stream.augment(0.5)
        return stream

    return made


def flat(batch):
    inputs, targets = batch
    return [*(inputs if isinstance(inputs, tuple) else (inputs,)), targets]


def place(stream):
    state = stream.state_dict().items()
    return {key: v.tolist() if isinstance(v, torch.Tensor) else v for key, v in state}


@pytest.mark.parametrize("size", [2, 3, 5])  # of the last there are more than examples in a batch
def test_slices_are_the_batches_of_one(make, size):
    whole, shares = make(), [make() for _ in range(size)]
    for _ in range(2):  # epochs
        slices = [s.slices(Share(rank, size)) for rank, s in enumerate(shares)]
        for batch, *parts in zip(whole, *slices, strict=True):
            for tensor, *pieces in zip(flat(batch), *map(flat, parts), strict=True):
                assert torch.cat(pieces).equal(tensor)
            assert all(place(stream) == place(whole) for stream in shares)


def test_a_stream_goes_on_whole_where_its_slices_were_left(make):
    whole, stream = make(), make()
    next(iter(whole))
    next(stream.slices(Share(1, 2)))
    for one, other in zip(whole, stream, strict=True):
        assert all(map(torch.equal, flat(one), flat(other)))


def test_the_first_processes_have_one_more():
    for count in range(12):
        sizes = [len(range(12)[Share(rank, 5).of(count)]) for rank in range(5)]
        assert sum(sizes) == count
        assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


def test_what_has_no_entry_for_each_example_stays_whole():
    batch = ({"x": torch.ones(4, 3), "scale": torch.ones(3, 3)}, torch.arange(4))
    inputs, targets = Share(1, 2).cut(batch)
    assert inputs["x"].shape == (2, 3)
    assert inputs["scale"].shape == (3, 3)
    assert targets.tolist() == [2, 3]
