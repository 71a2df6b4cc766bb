"""ProgressiveData and ProgressiveSets: growing parts of one data set, and a user's own."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from growthring.data import LoaderBatches
from growthring.data.given import as_stream
from growthring.errors import InputError
from growthring.streams import ProgressiveData, ProgressiveSets
from growthring.streams.data import FRACTIONS
from tests.messages.test_messages import says

DATA = TensorDataset(torch.arange(200.0), torch.arange(200) % 5)


def test_the_paper_s_fractions_with_replacement():
    stream = ProgressiveData(DATA)
    assert stream.fractions == FRACTIONS == (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    assert stream.sizes == (40, 60, 80, 100, 120, 140, 160, 180, 200)
    distinct = stream.indices(8).unique().numel()
    assert 100 < distinct < 150, "about 63 % of 200"
    for stage in range(1, 9):
        before = stream.indices(stage - 1)
        assert torch.equal(stream.indices(stage)[: len(before)], before), "D_0 ⊂ D_1 ⊂ …"
    assert [len(part) for part in stream] == list(stream.sizes)
    assert stream.seen(0) == (0, 1, 2, 3, 4) == stream.seen(8)


def test_without_replacement_all_come_once():
    stream = ProgressiveData(DATA, (0.5, 0.5, 1), replacement=False)
    assert stream.sizes == (100, 100, 200)
    assert sorted(stream.indices(2).tolist()) == list(range(200))
    assert stream.indices(0).unique().numel() == 100
    assert repr(stream) == "ProgressiveData(50%, 50%, 100%, without replacement)"


def test_the_draw_follows_from_the_seed_alone():
    for replacement in (True, False):
        draws = [
            ProgressiveData(DATA, replacement=replacement, seed=s).indices(8) for s in (0, 0, 1)
        ]
        assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize(
    ("fractions", "parts"),
    [
        ((0.5, 0.2), ("shrinks at stage 1", "(0.5, 0.2)")),
        ((0.5, 1.5), ("1.5 is no share",)),
        ((0.0, 1.0), ("0.0 is no share",)),
        ((), ("there are no stages",)),
        ((0.001, 1.0), ("stage 0 has no examples",)),
        ("0.5", ("fractions='0.5'", "a list")),
        (0.5, ("fractions=0.5", "a list")),
        ((True,), ("True is no share",)),
        ((float("nan"),), ("nan is no share",)),
    ],
)
def test_bad_fractions(fractions, parts):
    says(lambda: ProgressiveData(DATA, fractions), *parts, error=InputError)


def test_an_empty_data_set():
    class Empty(Dataset):
        def __len__(self):
            return 0

    says(lambda: ProgressiveData(Empty()), "no examples", error=InputError)


def test_a_regression_has_no_classes():
    stream = ProgressiveData(TensorDataset(torch.ones(10, 2), torch.rand(10)), (0.5, 1.0))
    assert stream.classes is None and stream.seen(1) is None


# Data sets of one's own.


def test_own_data_sets():
    parts = [
        TensorDataset(torch.full((n,), float(n)), torch.arange(n) % c) for n, c in ((6, 2), (9, 3))
    ]
    stream = ProgressiveSets(parts)
    assert stream.sizes == (6, 9) and stream.classes == ((0, 1), (2,)) and stream[1] is parts[1]
    batches = as_stream(stream.whole, "train", 4, torch.Generator())
    for stage in (0, 1, 5):
        stream.enter(batches, stage)
        inputs = torch.cat([x for x, _ in batches])
        size = (6, 9, 9)[min(stage, 2)]
        assert inputs.tolist() == [float(size)] * size


def test_own_loaders_keep_their_batches():
    loaders = [
        DataLoader(TensorDataset(torch.zeros(n), torch.arange(n)), b) for n, b in ((6, 3), (8, 4))
    ]
    stream = ProgressiveSets(loaders)
    batches = as_stream(stream.whole, "train", 99, torch.Generator())
    assert isinstance(batches, LoaderBatches) and stream.sizes == (6, 8)
    for stage, sizes in ((0, [3, 3]), (1, [4, 4])):
        stream.enter(batches, stage)
        assert len(batches) == 2 and [len(y) for _, y in batches] == sizes


def test_bad_sets():
    one, two = (TensorDataset(torch.zeros(n), torch.zeros(n)) for n in (5, 4))
    says(
        lambda: ProgressiveSets([one, two]),
        "shrinks from 5 examples to 4 at stage 1",
        error=InputError,
    )
    says(lambda: ProgressiveSets([]), "no stages", error=InputError)
    says(lambda: ProgressiveSets(one), "TensorDataset", "a list of data sets", error=InputError)
    says(lambda: ProgressiveSets([two, DataLoader(one)]), "1 DataLoader among 2", error=InputError)
    says(lambda: ProgressiveSets([two, [1, 2, 3, 4, 5]]), "list", error=InputError)


def test_negative_stages_count_from_the_end():
    stream = ProgressiveData(DATA, (0.5, 1.0))
    assert len(stream[-1]) == 200
    with pytest.raises(IndexError):
        stream[2]
