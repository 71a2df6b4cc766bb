"""ProgressiveClasses: which examples each stage has, of whatever a user gives."""

import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

import growthring as gr
from growthring.data import Augmentation, Batches, DatasetBatches, load
from growthring.errors import InputError
from growthring.streams import ProgressiveClasses, labels_of
from tests.messages.test_messages import says

LABELS = torch.arange(60) % 6
DATA = TensorDataset(torch.arange(60.0), LABELS)


class Vision(Dataset):
    """As torchvision's data sets: labels in `targets`, a transform that is slow."""

    def __init__(self, transform=None):
        self.targets = LABELS.tolist()
        self.target_transform, self.num_read = transform, 0

    def __len__(self):
        return 60

    def __getitem__(self, index):
        self.num_read += 1
        label = self.targets[index]
        return torch.ones(3), label if self.target_transform is None else self.target_transform(
            label
        )


class Bare(Dataset):
    """Knows no labels but those of its examples."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.ones(2), index % 3  # no IndexError at the end


def labels(part):
    return labels_of(part).tolist()


def test_classes_come_step_by_step_and_stay():
    stream = ProgressiveClasses(DATA, first=2, step=3, seed=1)
    assert len(stream) == 3 and [len(c) for c in stream.classes] == [2, 3, 1]
    assert sorted(stream.seen(2)) == list(range(6)) and stream.seen(0) == stream.classes[0]
    assert stream.sizes == (20, 50, 60) and stream.shares == (20 / 60, 50 / 60, 1.0)
    for stage, part in enumerate(stream):
        assert set(labels(part)) == set(stream.seen(stage))
        assert len(part) == stream.sizes[stage]
        if stage:
            before = set(stream.indices(stage - 1).tolist())
            assert before < set(stream.indices(stage).tolist()), "D_0 ⊂ D_1 ⊂ …"


def test_the_paper_s_setting():
    data = TensorDataset(torch.zeros(500), torch.arange(500) % 100)
    stream = ProgressiveClasses(data)
    assert [len(stream.seen(t)) for t in range(len(stream))] == [
        20,
        30,
        40,
        50,
        60,
        70,
        80,
        90,
        100,
    ]


def test_the_order_follows_from_the_seed_alone():
    orders = []
    for noise in (0, 1):
        torch.manual_seed(noise)
        orders.append([ProgressiveClasses(DATA, 2, 2, seed=s).seen(2) for s in range(4)])
    assert orders[0] == orders[1]
    assert len(set(orders[0])) > 1
    state = torch.get_rng_state()
    ProgressiveClasses(DATA, 2, 2)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("data", "num_read"),
    [
        (Vision(), 0),
        (Subset(Vision(), range(60)), 0),
        (ConcatDataset([DATA]), 0),
        (Vision(lambda y: 5 - y), 60),
    ],
)
def test_labels_are_found_without_reading_where_that_is_safe(data, num_read):
    stream = ProgressiveClasses(data, 2, 2, order=[0, 1, 2, 3, 4, 5])
    inner = getattr(data, "dataset", data)
    if isinstance(inner, Vision):
        assert inner.num_read == num_read
    expected = {5, 4} if num_read else {0, 1}
    assert {int(LABELS[i]) for i in stream.indices(0)} == expected


def test_labels_that_only_examples_tell():
    assert ProgressiveClasses(Bare(), 1, 1).sizes == (4, 8, 12)
    given = ProgressiveClasses(Bare(), 1, 1, labels=[0] * 6 + [1] * 6)
    assert given.sizes == (6, 12)


def test_a_loader_stays_the_loader_that_it_was():
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(DATA, 7, shuffle=True, drop_last=True, generator=generator)
    stream = ProgressiveClasses(loader, 2, 2)
    part = stream[0]
    assert isinstance(part, DataLoader) and part.batch_size == 7 and part.drop_last
    seen = torch.cat([y for _, y in part])
    assert len(seen) == 14 and set(seen.tolist()) == set(stream.seen(0))
    assert seen.tolist() != sorted(seen.tolist()), "shuffled"


def test_streams_of_growthring():
    train, _ = load("digits")
    batches = Batches(train, 50, Augmentation.of(train), torch.Generator().manual_seed(0))
    stream = ProgressiveClasses(batches, 4, 3)
    stream.enter(batches, 0)
    seen = torch.cat([y for _, y in batches])
    assert len(seen) == stream.sizes[0] == batches.num_examples < batches.num_whole == len(train)
    assert set(seen.tolist()) == set(stream.seen(0))
    assert sum(len(y) for _, y in stream[2]) == len(train)
    own = DatasetBatches(DATA, 8, None)
    assert ProgressiveClasses(own, 3, 3).sizes == (30, 60)


def test_other_orders():
    stream = ProgressiveClasses(DATA, 1, 5, order=(5, 4, 3, 2, 1, 0))
    assert stream.classes == ((5,), (4, 3, 2, 1, 0))
    assert repr(stream) == "ProgressiveClasses(1, 6 classes)"
    one = ProgressiveClasses(DATA, 6, 1)
    assert len(one) == 1


def test_a_class_without_examples():
    gap = TensorDataset(torch.zeros(4), torch.tensor([0, 1, 3, 3]))
    says(lambda: ProgressiveClasses(gap, 1, 1), "1 of 4 class has no examples: 2", error=InputError)
    says(
        lambda: ProgressiveClasses(DATA, 2, 2, num_classes=10),
        "4 of 10 classes have no examples: 6, 7, 8, 9",
    )


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: ProgressiveClasses(DATA, first=7), ("first=7", "6 classes only")),
        (lambda: ProgressiveClasses(DATA, first=0), ("first=0", "at least 1")),
        (lambda: ProgressiveClasses(DATA, 2, step=0), ("step=0", "at least 1")),
        (lambda: ProgressiveClasses(DATA, 2, step=1.5), ("step=1.5",)),
        (lambda: ProgressiveClasses(DATA, 2, seed=-1), ("seed=-1",)),
        (lambda: ProgressiveClasses(DATA, 2, 2, order=[0, 1, 2]), ("order=[0, 1, 2]", "0 to 5")),
        (lambda: ProgressiveClasses(DATA, 2, 2, order=[0, 1, 2, 3, 4, 4]), ("once",)),
        (lambda: ProgressiveClasses(DATA, 2, 2, num_classes=3), ("num_classes=3", "at least 6")),
        (lambda: ProgressiveClasses(DATA, 2, 2, labels=[0, 1]), ("labels=[0, 1]", "60 examples")),
        (lambda: ProgressiveClasses([1, 2], 1, 1), ("list", "data set of torch")),
        (lambda: ProgressiveClasses(TensorDataset(torch.ones(3), torch.rand(3)), 1, 1), ("no classes", "labels=")),
        (lambda: ProgressiveClasses(TensorDataset(torch.ones(3)), 1, 1), ("(input, target)", "labels=")),
        (lambda: ProgressiveClasses(TensorDataset(torch.ones(2), torch.tensor([-1, 0])), 1, 1), ("label -1",)),
    ],
)  # fmt: skip
def test_bad_input(call, parts):
    says(call, *parts, error=InputError)


def test_data_without_examples_by_number():
    class Endless(IterableDataset):
        def __iter__(self):
            return iter([(torch.ones(1), 0)])

    says(lambda: ProgressiveClasses(Endless(), 1, 1), "Endless", "ProgressiveSets")
    says(lambda: ProgressiveClasses(DataLoader(Endless()), 1, 1), "iterable")
    weighted = torch.utils.data.WeightedRandomSampler([1.0] * 60, 60)
    says(
        lambda: ProgressiveClasses(DataLoader(DATA, sampler=weighted), 1, 1),
        "WeightedRandomSampler",
    )


def test_it_is_exported():
    assert gr.streams.ProgressiveClasses is ProgressiveClasses
