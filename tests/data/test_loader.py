"""Loaders of the user's own: resumed at every batch, what is said of those that may not be, and what is refused."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from growthring.data import LoaderBatches
from growthring.data.given import as_stream, examples_of
from growthring.data.randomness import seed_shared_random, set_shared_random, shared_random
from growthring.errors import InputError

N = 40
DATA = TensorDataset(torch.arange(float(N)).view(N, 1), torch.arange(N))


class Augmented(Dataset):
    """Adds random numbers to its examples, from a generator of its own or from those that everybody shares."""

    def __init__(self, generator=None):
        self.generator = generator

    def __len__(self):
        return N

    def __getitem__(self, index):
        drawn = torch.rand(1, generator=self.generator)
        if self.generator is None:
            drawn += random.random() + np.random.rand()
        return DATA[index][0] + drawn.float(), DATA[index][1]


class Stored(IterableDataset):
    def __iter__(self):
        return iter([DATA[i] for i in range(N)])

    def __len__(self):
        return N


class Endless(IterableDataset):
    def __iter__(self):
        return iter(DATA)


class Shuffled(Sampler):
    """A sampler of a user's own, with Python's random numbers."""

    def __iter__(self):
        return iter(random.sample(range(N), N))

    def __len__(self):
        return N


class Mine:
    """A loader of a user's own."""

    def __iter__(self):
        return iter([DATA[:4], DATA[4:8]])

    def __len__(self):
        return 2


def shared(generator, **options):
    return DataLoader(Augmented(generator), 16, shuffle=True, generator=generator, **options)


# From a generator to a loader.
KINDS = {
    "in order": lambda g: DataLoader(DATA, 16),
    "shuffled": lambda g: DataLoader(DATA, 16, shuffle=True),
    "shuffled with a generator": lambda g: DataLoader(DATA, 16, shuffle=True, generator=g),
    "drops the last batch": lambda g: DataLoader(DATA, 16, True, drop_last=True, generator=g),
    "a sampler's own generator": lambda g: DataLoader(
        DATA, 16, sampler=RandomSampler(DATA, generator=g)
    ),
    "with replacement": lambda g: DataLoader(
        DATA, 16, sampler=RandomSampler(DATA, replacement=True, num_samples=70, generator=g)
    ),
    "weighted": lambda g: DataLoader(
        DATA, 16, sampler=WeightedRandomSampler(torch.arange(1.0, N + 1), N)
    ),
    "a subset": lambda g: DataLoader(DATA, 4, sampler=SubsetRandomSampler(range(12), generator=g)),
    "distributed": lambda g: DataLoader(DATA, 16, sampler=DistributedSampler(DATA, 1, 0)),
    "batches of a sampler": lambda g: DataLoader(
        DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 16, False)
    ),
    "augmented": lambda g: shared(None),
    "augmented from the sampler's generator": lambda g: shared(g),
    "a list": lambda g: [DATA[:16], DATA[16:32], DATA[32:]],
    "an iterable data set": lambda g: DataLoader(Stored(), 16),
    "a sampler of one's own": lambda g: DataLoader(DATA, 16, sampler=Shuffled()),
    "a loader of one's own": lambda g: Mine(),
}
WORKERS = {
    "workers": lambda g: shared(None, num_workers=2),
    "workers with a generator": lambda g: shared(torch.Generator().manual_seed(3), num_workers=2),
    "persistent workers": lambda g: DataLoader(
        DATA, 16, shuffle=True, generator=g, num_workers=2, persistent_workers=True
    ),
}


def make(kind, seed=0):
    return LoaderBatches((KINDS | WORKERS)[kind](torch.Generator().manual_seed(seed)))


def take(stream, count):
    """So many batches, over the ends of epochs; a model with dropout draws after each."""
    out = []
    while len(out) < count:
        for inputs, targets in stream:
            out.append((inputs, targets, torch.rand(1)))
            if len(out) == count:
                break
    return out


def same(a, b):
    return len(a) == len(b) and all(
        all(torch.equal(t, u) for t, u in zip(x, y, strict=True)) for x, y in zip(a, b, strict=True)
    )


def check_resumed(kind, counts):
    first = make(kind)
    seed_shared_random(1)
    whole = take(first, 3 * len(first))
    for count in counts(len(first)):
        stream = make(kind)
        seed_shared_random(1)
        take(stream, count)
        if count and count % len(first) == 0:
            assert list(stream) == []  # the end of an epoch
        state, shared = stream.state_dict(), shared_random()
        seed_shared_random(99)
        other = make(kind, seed=5)
        other.load_state_dict(state)
        set_shared_random(shared)
        assert same(take(other, len(whole) - count), whole[count:]), count
        assert other.state_dict()["epoch"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_at_every_batch_bit_for_bit(kind):
    check_resumed(kind, lambda length: range(2 * length + 1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_resumed_with_workers(kind):
    check_resumed(kind, lambda length: (1, length, length + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_looking_and_searching_leave_everything_as_it_was(kind):
    seed_shared_random(4)
    before = torch.get_rng_state(), random.getstate()
    stream = make(kind)
    expected = take(make(kind), 2 * len(stream))
    set_shared_random({"torch": before[0], "python": before[1]})
    seed_shared_random(4)
    fork = stream.fork(7)
    found, again, other = (list(f) for f in (fork, fork, stream.fork(8)))
    assert same(found, again) and len(found) == len(stream)
    is_random = not same(found, other)
    assert is_random == (kind not in FIXED)
    next(iter(fork))  # one that is left
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert same(take(stream, 2 * len(stream)), expected)


FIXED = {"in order", "distributed", "a list", "an iterable data set", "a loader of one's own"}
DOUBTFUL = {
    "an iterable data set": "the iterable data set Stored gives its examples cannot be seen",
    "a sampler of one's own": "in which order Shuffled gives its examples cannot be seen",
    "a loader of one's own": "in which order Mine gives its batches cannot be seen",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_whose_order_cannot_be_seen_says_so(kind):
    notes = make(kind).notes
    if kind not in DOUBTFUL:
        assert notes == ()
        return
    (note,) = notes
    assert note.startswith("a resumed run may not go on bit for bit: ") and DOUBTFUL[kind] in note
    assert note.endswith("It goes on where it was, with the batches that train then gives.")


def test_workers_that_draw_on_their_own_say_so():
    loader = DataLoader(DATA, 16, num_workers=1, persistent_workers=True)
    assert "persistent workers go on with random numbers of their own" in doubt(loader)
    loader = DataLoader(DATA, 16, num_workers=1, in_order=False)
    assert "the order of the batches is that in which the workers get ready" in doubt(loader)
    assert doubt(DataLoader(DATA, 16, num_workers=1)) is None


def doubt(loader):
    from growthring.data.anatomy import doubt_about

    return doubt_about(loader)


class Stateful:
    """A loader that knows where it is, as torchdata's do."""

    def __init__(self):
        self.at = 0

    def __len__(self):
        return 5

    def __iter__(self):
        while self.at < 5:
            self.at += 1
            yield torch.full((2, 1), float(self.at)), torch.zeros(2)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_a_loader_with_a_state_is_asked_for_its_place():
    stream, other = LoaderBatches(Stateful()), LoaderBatches(Stateful())
    assert "It goes on where it was, as its own state_dict says." in stream.notes[0]
    take(stream, 7)
    other.load_state_dict(stream.state_dict())
    assert [float(x[0]) for x, _, _ in take(other, 4)] == [3, 4, 5, 1]


def test_examples_are_counted():
    stream = LoaderBatches(DataLoader(DATA, 16))
    assert (stream.num_examples, len(stream), stream.batch_size) == (48, 3, 16)
    take(stream, 2)
    resumed = LoaderBatches(DataLoader(DATA, 16))
    resumed.load_state_dict(stream.state_dict())
    for each in (stream, resumed):
        list(each)
        assert each.num_examples == N and each.notes == ()


class Long(Mine):
    def __len__(self):
        return 3


def test_a_length_that_is_wrong_is_said_once():
    stream = LoaderBatches(Long())
    list(stream), list(stream)
    assert len(stream.notes) == 2
    assert "train gave 2 batches in an epoch, but its length is 3: learning" in stream.notes[1]


REFUSED = {
    "a generator": ((b for b in [DATA[:4]]), "a generator, which can be gone over only once"),
    "a zip": (zip([1], [2], strict=True), "a zip, which can be gone over only once"),
    "a loop": (iter(DataLoader(DATA)), "DataLoaderIter, which can be gone over only once"),
    "a tensor": (torch.ones(4, 3), "train is a Tensor; needed is a DataLoader, a data set"),
    "a number": (3, "train is a int; needed is a DataLoader"),
    "a function": (lambda: DATA, "train is a function; needed is"),
    "a text": ("data", "train is a str; needed is"),
    "a mapping": ({"x": DATA}, "train is a dict; needed is"),
    "two tensors": ((torch.ones(4, 3), torch.ones(4)), r"gives a Tensor where \(inputs, targets\)"),
    "three parts": (DataLoader(TensorDataset(*DATA.tensors, DATA.tensors[1])), "gives a list of 3"),
    "no targets": (DataLoader(TensorDataset(torch.ones(4))), "a list of 1 where .* TensorDataset"),
    "rows": ([{"text": 1, "label": 2}], "gives a dict with text, label where .* collate_fn"),
    "no tensors": (
        DataLoader([("a", 1), ("b", 2)]),
        "inputs that train gives are a tuple, without",
    ),
    "nothing": ([], "train gives no batch: there are no examples"),
    "all dropped": (DataLoader(DATA, 64, drop_last=True), "fewer than one batch with drop_last"),
    "no length": (DataLoader(Endless(), 4), r"train has no length \(.*the learning rate of each"),
    "an endless data set": (Endless(), "Give the loader, or its iterable data set, a __len__"),
    "an empty data set": (TensorDataset(torch.ones(0)), "the data set TensorDataset has no ex"),
}


@pytest.mark.parametrize(("given", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_trained_on_is_refused(given, says, generator):
    with pytest.raises(InputError, match=says):
        as_stream(given, "train", 4, generator)


def test_test_data_needs_no_length():
    stream = as_stream(DataLoader(Endless(), 16), "test", 4, None)
    assert len(list(stream.fork(0))) == 3 and stream.notes == ()


STATES = {
    "another kind": ({"more": 1}, "not the state of a loader: it has .*'more'"),
    "a text": ({"epoch": "1"}, "must be whole numbers, got"),
    "a negative": ({"position": -1}, "must be whole numbers, got"),
    "another length": ({"num_batches": 9}, "began with 9 batches an epoch, train has 3. Resume"),
    "no start": ({"start": None}, "does not say how its epoch began"),
    "another start": (
        {"start": {"shared": {"torch": 3}, "generators": []}},
        "no such state of ran",
    ),
    "odd numbers": ({"start": {"shared": {"x": 3}, "generators": []}}, "no such state of random"),
    "another loader": ({"start": {"shared": {}, "generators": []}}, "1 generators of its own, in"),
}


@pytest.mark.parametrize(("change", "says"), STATES.values(), ids=STATES.keys())
def test_a_state_that_does_not_fit_changes_nothing(change, says):
    stream, expected = (make("shuffled with a generator") for _ in range(2))
    take(stream, 1), take(expected, 1)
    with pytest.raises(InputError, match=says):
        stream.load_state_dict({**stream.state_dict(), **change})
    assert same([b[:2] for b in take(stream, 3)], [b[:2] for b in take(expected, 3)])


def test_fewer_batches_than_the_run_has_had():
    stream = LoaderBatches(Mine())
    stream.load_state_dict({**stream.state_dict(), "position": 5})
    with pytest.raises(InputError, match="has had 5 batches of this epoch, but train gives only 2"):
        list(stream)


def test_a_data_set_is_batched_and_resumes(generator):
    stream = as_stream(Augmented(), "train", 16, generator)
    seed_shared_random(0)
    whole = take(stream, 6)
    other = as_stream(Augmented(), "train", 16, torch.Generator().manual_seed(0))
    seed_shared_random(0)
    take(other, 2)
    state, shared = other.state_dict(), shared_random()
    last = as_stream(Augmented(), "train", 16, torch.Generator())
    last.load_state_dict(state)
    set_shared_random(shared)
    assert same(take(last, 4), whole[2:])
    stream.set_batch_size(40)
    assert len(stream) == 1


def test_a_data_set_that_reads_many_at_once(generator):
    class Rows(Dataset):
        def __len__(self):
            return 6

        def __getitems__(self, indices):
            return [DATA[i] for i in indices]

    (inputs, targets), *_ = as_stream(Rows(), "test", 4, None)
    assert targets.tolist() == [0, 1, 2, 3] and inputs.shape == (4, 1)


def test_examples_of_other_shapes_are_refused():
    class Texts(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return torch.zeros(index + 1), 0

    with pytest.raises(InputError, match=r"cannot be put into one batch: .* with a collate_fn"):
        examples_of(as_stream(Texts(), "train", 3, None))


def test_a_sequential_sampler_is_known():
    assert doubt(DataLoader(DATA, sampler=SequentialSampler(DATA))) is None
