"""Contracts of both kinds of batches: order, epochs, state."""

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from growthring.data import Augmentation, Batches, BatchStream, Crop, FolderBatches, ImageFolder
from growthring.errors import InputError
from tests.data.layouts import image_data, write_images

N = 10  # examples; labels are their indices
Make = Callable[..., BatchStream]
KINDS = ["memory", "memory, evaluation", "folder", "folder, evaluation"]


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("images")
    write_images(root, N)
    return root


def build(kind: str, images: Path, seed: int = 0, batch_size: int = 3, **options) -> BatchStream:
    generator = None if "evaluation" in kind else torch.Generator().manual_seed(seed)
    if "folder" in kind:
        folder = ImageFolder.scan(images)
        return FolderBatches(folder, batch_size, Crop(8, 9), generator, num_threads=2, **options)
    augmentation = Augmentation((0.5,) * 3, (0.2,) * 3, shift=2, mirror=True)
    return Batches(image_data(N), batch_size, augmentation, generator, **options)


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def make(kind: str, images: Path) -> Make:
    return lambda *args, **options: build(kind, images, *args, **options)


@pytest.fixture(params=["memory", "folder"])
def make_training(request, images: Path) -> Make:
    return lambda *args, **options: build(request.param, images, *args, **options)


def same(a, b) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


def labels_of(batches) -> list[int]:
    return torch.cat([labels for _, labels in batches]).tolist()


def saved(state: dict) -> dict:
    """Through a file, as only plain numbers and tensors go."""
    assert all(type(value) in (int, Tensor) for value in state.values())
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def take(stream: BatchStream, count: int) -> list:
    """The next batches, also over the ends of epochs."""
    out: list = []
    while len(out) < count:
        for batch in stream:
            out.append(batch)
            if len(out) == count:
                break
    return out


def test_an_epoch_has_every_example_once(make: Make):
    stream = make()
    for epoch in range(3):
        assert (stream.epoch, stream.position) == (epoch, 0)
        batches = list(stream)
        assert [len(labels) for _, labels in batches] == [3, 3, 3, 1]
        assert len(batches) == len(stream)
        assert sorted(labels_of(batches)) == list(range(N))


def test_batches_are_floats_in_plain_nchw(make: Make):
    for x, labels in make():
        n, c, h, w = x.shape
        assert x.dtype == torch.float32 and labels.dtype == torch.int64
        assert x.stride() == (c * h * w, h * w, w, 1)
        assert labels.shape == (n,)


def test_epochs_differ_and_seeds_decide(make_training: Make):
    stream = make_training(seed=1)
    first, second = list(stream), list(stream)
    assert labels_of(first) != labels_of(second)
    again = make_training(seed=1)
    assert same(first, list(again)) and same(second, list(again))
    assert labels_of(make_training(seed=2)) != labels_of(first)


@pytest.mark.parametrize("kind", ["memory, evaluation", "folder, evaluation"])
def test_evaluation_is_the_same_every_time_and_in_order(make: Make):
    stream = make()
    first = list(stream)
    assert labels_of(first) == list(range(N))
    assert same(first, list(stream)) and same(first, list(make()))


@pytest.mark.parametrize(
    ("batch_size", "drop_last"),
    [(size, drop) for size in (1, 3, 5, 10, 11) for drop in (False, True) if size <= N or not drop],
)
def test_length(make: Make, batch_size: int, drop_last: bool):
    stream = make(batch_size=batch_size, drop_last=drop_last)
    sizes = [len(labels) for _, labels in stream]
    whole, rest = divmod(N, batch_size)
    assert sizes == [batch_size] * whole + ([rest] if rest and not drop_last else [])
    assert len(stream) == len(sizes)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.each(2)
def test_resumed_at_every_batch(make: Make, drop_last: bool):
    per_epoch = 3 if drop_last else 4
    whole = take(make(drop_last=drop_last), 3 * per_epoch)
    for count in range(2 * per_epoch + 1):
        stream = make(drop_last=drop_last)
        take(stream, count)  # left right after a batch; after the last of an epoch as well
        state = saved(stream.state_dict())
        other = make(seed=99, batch_size=7, drop_last=drop_last)
        other.load_state_dict(state)
        assert other.batch_size == 3
        assert same(take(other, 3 * per_epoch - count), whole[count:])
        assert same(take(stream, 3 * per_epoch - count), whole[count:])


def test_state_in_the_body_of_the_loop(make: Make):
    stream, states = make(), []
    for _ in stream:
        states.append(stream.state_dict())
    assert [(s["epoch"], s["position"]) for s in states] == [(0, 3), (0, 6), (0, 9), (0, 10)]
    following = list(stream)
    for i, state in enumerate(states):
        other = make(seed=5)
        other.load_state_dict(state)
        assert len(list(other)) == 3 - i  # none after the last: the epoch still has to end
        assert other.epoch == 1
        assert same(list(other), following)


def test_state_at_the_end_of_an_epoch(make: Make):
    stream = make()
    list(stream)
    state = stream.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    other = make(seed=5)
    other.load_state_dict(state)
    assert same(list(other), list(stream))


def test_a_state_is_a_copy(make: Make):
    stream = make()
    next(iter(stream))
    state = stream.state_dict()
    kept = saved(state)
    rest = list(stream)
    assert all(torch.equal(torch.as_tensor(state[k]), torch.as_tensor(kept[k])) for k in kept)
    for value in state.values():
        if isinstance(value, Tensor):
            value.zero_()
    stream.load_state_dict(kept)
    assert same(rest, list(stream))


def test_loading_in_mid_loop_goes_on_from_there(make: Make):
    stream = make()
    whole = take(stream, 4)
    stream = make()
    loop = iter(stream)
    next(loop)
    state = stream.state_dict()
    next(loop), next(loop)
    stream.load_state_dict(state)
    assert same(list(loop), whole[1:])


CHILD = """
import hashlib, sys, torch
from pathlib import Path
from tests.data.test_stream import build, digest
kind, images, state = sys.argv[1:]
torch.set_num_threads(1)
for kind in kind.split(";"):
    stream = build(kind, Path(images), seed=123)
    stream.load_state_dict(torch.load(f"{state}-{kind}", weights_only=True))
    print(digest(stream))
"""


def digest(stream: BatchStream) -> str:
    """Of the rest of this epoch and the whole next one."""
    out = hashlib.sha256()
    for batch in [*stream, *stream]:
        for tensor in batch:
            out.update(tensor.numpy().tobytes())
    return out.hexdigest()


@pytest.mark.slow
def test_resumed_in_another_process(images: Path, tmp_path: Path):
    kinds, expected = ["memory", "folder"], []
    for kind in kinds:
        stream = build(kind, images)
        take(stream, 6)
        torch.save(stream.state_dict(), tmp_path / f"state-{kind}")
        expected.append(digest(stream))
    root = Path(__file__).parents[2]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, ";".join(kinds), str(images), str(tmp_path / "state")],
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.split() == expected


def test_a_loop_that_was_left_is_continued(make: Make):
    whole = list(make())
    stream = make()
    parts = [next(iter(stream)) for _ in range(3)]
    assert stream.position == 9
    assert same(parts + list(stream), whole)


def test_a_new_loop_ends_an_older_one(make: Make):
    stream = make()
    whole = list(make())
    old = iter(stream)
    first = next(old)
    new = iter(stream)
    second = next(new)
    assert list(old) == []
    assert same([first, second, *new], whole)
    assert list(old) == [] and stream.epoch == 1


def test_batch_size_changes_in_mid_epoch(make: Make):
    stream = make()
    sizes, labels = [], []
    for _, found in stream:
        sizes.append(len(found))
        labels += found.tolist()
        if len(sizes) == 2:
            stream.set_batch_size(1)
        if len(sizes) == 4:
            state = saved(stream.state_dict())
            stream.set_batch_size(5)
    assert sizes == [3, 3, 1, 1, 2]
    assert sorted(labels) == list(range(N))
    assert labels == labels_of(make())  # one order, cut in another way
    assert len(stream) == 2
    stream.load_state_dict(state)
    assert stream.batch_size == 1 and len(list(stream)) == 2


def test_rewinding_repeats_the_epoch(make: Make):
    stream = make()
    list(stream)
    whole = list(stream)
    stream = make()
    list(stream)
    take(stream, 2)
    stream.rewind()
    assert (stream.epoch, stream.position) == (1, 0)
    assert same(list(stream), whole)


def test_generators_are_left_alone(make_training: Make, images: Path):
    # One seed from the generator that was passed, nothing from the global one.
    torch.manual_seed(3)
    before = torch.get_rng_state()
    generator, twin = (torch.Generator().manual_seed(4) for _ in range(2))
    augmentation = Augmentation((0.5,) * 3, (0.2,) * 3, shift=2, mirror=True)
    first = Batches(image_data(N), 3, augmentation, generator)
    second = Batches(image_data(N), 3, augmentation, generator)
    assert labels_of(first) != labels_of(second)
    torch.randint(2**62, (), generator=twin), torch.randint(2**62, (), generator=twin)
    assert torch.equal(generator.get_state(), twin.get_state())
    list(make_training())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, None])
def test_a_batch_size_that_cannot_be_is_refused(make: Make, batch_size):
    with pytest.raises(
        InputError, match=f"batch_size={batch_size}: must be a whole number, at least"
    ):
        make(batch_size=batch_size)
    stream = make()
    with pytest.raises(InputError, match="must be a whole number"):
        stream.set_batch_size(batch_size)
    assert len(list(stream)) == 4


def test_no_batch_at_all_is_refused(make: Make):
    with pytest.raises(
        InputError, match="batch_size=11 with drop_last leaves no batch of 10 examples"
    ):
        make(batch_size=11, drop_last=True)


def test_no_examples_are_refused():
    data = image_data(N)
    nothing = type(data)(data.images[:0], data.labels[:0], 1, "nothing")
    with pytest.raises(InputError, match="there are no examples to make batches of"):
        Batches(nothing, 3, Augmentation((0.5,) * 3, (0.2,) * 3), None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"generator": None}, "'generator' is not the state of a torch.Generator"),
        ({"generator": torch.zeros(5056, dtype=torch.uint8)}, "'generator' is not the state of"),
        (
            {"generator_at_epoch_start": torch.zeros(3)},
            "'generator_at_epoch_start' is not the state",
        ),
        ({"epoch": -1}, "must be whole numbers, got"),
        ({"epoch": "1"}, "must be whole numbers, got"),
        ({"position": 1.0}, "must be whole numbers, got"),
        ({"position": 11}, "at example 11 of 10, but this data has 10"),
        ({"num_examples": 20}, "at example 3 of 20, but this data has 10. Resume with the data"),
        ({"batch_size": 0}, "batch_size=0: must be a whole number"),
        ({"more": 0}, "not the state of such a stream: it has .*'more'"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(make_training: Make, change, message):
    stream = make_training()
    next(iter(stream))
    before = stream.state_dict()
    with pytest.raises(InputError, match=message):
        stream.load_state_dict({**make_training(seed=9).state_dict(), "position": 3, **change})
    after = stream.state_dict()
    assert all(torch.equal(torch.as_tensor(before[k]), torch.as_tensor(after[k])) for k in before)


def test_states_of_training_and_evaluation_are_not_mixed_up(images: Path):
    training, evaluation = build("memory", images), build("memory, evaluation", images)
    for a, b in [(training, evaluation), (evaluation, training)]:
        with pytest.raises(InputError, match="not the state of such a stream"):
            a.load_state_dict(b.state_dict())


@pytest.mark.parametrize("drop_last", [False, True])
def test_examples_of_batches_of_several_sizes_are_counted_without_reading_them(images, drop_last):
    source = torch.Generator().manual_seed(1)
    for _ in range(40):
        numbers = torch.randint(1, 9, (3, 2), generator=source).tolist()
        stream = build("memory", images, drop_last=drop_last)
        examples = 0
        for count, size in numbers:
            stream.set_batch_size(size)
            while count:
                for _, labels in stream:
                    examples, count = examples + len(labels), count - 1
                    if not count:
                        break
        assert build("memory", images, drop_last=drop_last).count_examples(numbers) == examples


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_a_share_of_the_examples_is_changed_from_the_next_batch_on(kind, images):
    stream, still = (
        build(kind, images, batch_size=N),
        build(f"{kind}, evaluation", images, batch_size=N),
    )
    ((plain, _),) = still
    for share, is_changed in ((0.0, [False]), (0.5, [False, True]), (1.0, [True])):
        stream.augment(share)
        ((found, labels),) = stream
        changed = (found != plain[labels]).flatten(1).any(1).unique().tolist()
        assert changed == is_changed or (share == 1.0 and changed == [False, True]), share
    state = stream.state_dict()
    stream.augment(0.5)
    ((expected, _),) = stream
    again = build(kind, images, seed=9, batch_size=N)
    again.load_state_dict(state)
    again.augment(0.5)
    ((found, _),) = again
    assert torch.equal(found, expected)


def test_part_of_an_epoch(images):
    stream = build("memory", images, batch_size=4)
    assert [(stream.part, len(labels)) for _, labels in stream] == [(0.4, 4), (0.8, 4), (1.0, 2)]
    assert stream.part == 0.0 and stream.epoch == 1
