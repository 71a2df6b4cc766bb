"""A recipe that several processes train is the recipe that one process trains."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from growthring.checkpoint import load_weights, read_json, read_jsonl
from growthring.cli import main
from growthring.errors import GrowthError, InputError
from growthring.streams import ProgressiveClasses
from growthring.train import Recipe, Silence, Trainer, change, parse_settings
from growthring.train.card import card_of
from growthring.train.state import Interrupted
from growthring.zoo import GPT, Transformer
from tests.distributed_helpers import on_ranks
from tests.train.nets import Vectors
from tests.train.runs import language, small, translation

ADAPTED = {"rate_adaptation": "norm"}
KINDS = {
    "sgd": ("optimizer=sgd", {"momentum": 0.9, "weight_decay": 1e-3, **ADAPTED}),
    "adamw": ("optimizer=adamw", {**ADAPTED, "ages": "ring"}),
}
EXAMPLES, BATCH = 37, 12  # 12, 12, 12 and 1, which is less than two processes can have


def net() -> nn.Module:
    """Without BatchNorm, whose statistics would be those of a slice."""
    return nn.Sequential(
        *(nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU()),
        *(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)),
    ).double()


def data(count: int = EXAMPLES) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    y = x[:, :3].argmax(1)
    y[:6] = -100  # places that do not count, so that slices weigh differently
    return TensorDataset(x, y)


def recipe(kind: str = "sgd", *settings: str) -> Recipe:
    optimizer, options = KINDS[kind]
    made = Recipe("small", net, optimizer_options=options, label_smoothing=0.1, lr=0.02, shift=0)
    tiny = ("epochs=4", "first_epochs=none", "stages=3", f"batch_size={BATCH}", "clip_norm=1.0")
    return change(made, parse_settings([*tiny, "start=0.25", optimizer, *settings]))


class Stopping(Silence):
    """Asks a run to stop after a step, as a signal does."""

    def __init__(self, at: int | None) -> None:
        self.at, self.trainer = at, None

    def step(self, status) -> None:
        if status.step == self.at:
            self.trainer._interrupt.is_asked = True


def trained(folder, kind="sgd", stop=None, resume=False, settings=(), **options):
    """Trains in a folder, or goes on there; the result, or the words with which it stopped."""
    given = {"model": net, "train": data(), "test": data(9), "log_rates": 0, **options}
    trainer = Trainer(recipe(kind, *settings), folder, progress=Silence(), **given)
    trainer.progress = Stopping(stop)
    trainer.progress.trainer = trainer
    if resume:
        trainer.resume()
    try:
        return trainer.fit()
    except Interrupted as stopped:
        return str(stopped)


def assert_close(a, b, **tolerance):
    one, other = (load_weights(folder / "model.safetensors") for folder in (a, b))
    assert list(one) == list(other)
    for name, tensor in one.items():
        torch.testing.assert_close(
            tensor, other[name], **({"rtol": 1e-10, "atol": 1e-10} | tolerance)
        )


def lines(folder):
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "cpu_seconds")}
        for line in read_jsonl(folder / "metrics.jsonl")
    ]


def assert_same_numbers(a, b, rel=1e-9):
    for one, other in zip(lines(a), lines(b), strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            if isinstance(value, float):
                assert value == pytest.approx(other[key], rel=rel, abs=1e-12), key
            elif key == "scores":
                assert value == pytest.approx(other[key], rel=rel)
            else:
                assert value == other[key], key


# Through two growths.


def whole(rank, folder, kind):
    return trained(folder, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_are_one_through_two_growths(tmp_path, kind):
    alone = trained(tmp_path / "one", kind)
    both = on_ranks(whole, tmp_path / "two", kind)
    assert both[0] == both[1]
    assert_close(tmp_path / "one", tmp_path / "two")
    assert_same_numbers(tmp_path / "one", tmp_path / "two")
    assert [line["stage"] for line in lines(tmp_path / "two") if line["kind"] == "growth"] == [1, 2]
    assert (both[0].flops, both[0].steps) == (alone.flops, alone.steps)
    assert both[0].notes == ("trained by 2 processes.",)
    assert "2 processes" in read_json(tmp_path / "two/config.json")["machine"]
    assert card_in(tmp_path / "two").processes == (2,)
    assert card_in(tmp_path / "one").processes == ()


def card_in(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return card_of(file.metadata())


def growing_data():
    x = torch.randn(36, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return ProgressiveClasses(TensorDataset(x, x[:, :3].argmax(1)), first=1, step=1)


def streamed(rank, folder):
    return trained(folder, train=growing_data(), settings=("osgd=linear",))


def test_two_processes_are_one_on_growing_data(tmp_path):
    alone = streamed(0, tmp_path / "one")
    both = on_ranks(streamed, tmp_path / "two")
    assert both[0] == both[1] and both[0].pass_flops == alone.pass_flops > 0
    assert_close(tmp_path / "one", tmp_path / "two")
    found = [
        [line for line in lines(tmp_path / name) if line["kind"] == "stage"]
        for name in ("one", "two")
    ]
    assert found[0] == found[1] and [line["classes"] for line in found[0]] == [1, 2, 3]


# On fewer or more processes.


def stopped(rank, folder, at):
    return trained(folder, stop=at if rank == 1 else None)  # as if only that one got the signal


def resumed(rank, folder):
    """The second process is on another machine, say, which has no such folder."""
    return trained(folder if rank == 0 else folder / "elsewhere", resume=True)


def test_a_run_goes_on_with_fewer_or_more_processes(tmp_path):
    one, fewer, more = (tmp_path / name for name in ("one", "fewer", "more"))
    trained(one)
    words = on_ranks(stopped, fewer, 7)  # in the middle of an epoch and of a stage
    assert words[0] == words[1] and words[0].startswith(
        "stopped after step 7; everything is saved."
    )
    result = trained(fewer, resume=True)
    assert result.notes == ("trained by 2 processes, from step 7 on by 1 process.",)
    trained(more, stop=9)
    both = on_ranks(resumed, more)
    assert both[0] == both[1]
    assert both[0].notes == ("trained by 1 process, from step 9 on by 2 processes.",)
    assert not (more / "elsewhere").exists()
    for folder in (fewer, more):
        assert_close(one, folder)
        assert_same_numbers(one, folder)


def dropping(rank, folder, at=None, resume=False):
    """With dropout, whose numbers each process draws for itself, and BatchNorm."""
    options = {"stop": at if rank == 1 else None, "resume": resume, "settings": ("epochs=3",)}
    return trained(folder, model=dropped, train=data(36), **options)


def dropped():
    middle = (nn.Linear(12, 12), nn.Dropout(0.3), nn.Linear(12, 3))
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), *middle).double()


def test_the_same_number_of_processes_goes_on_bit_for_bit(tmp_path):
    on_ranks(dropping, tmp_path / "straight")
    on_ranks(dropping, tmp_path / "stopped", 6)
    on_ranks(dropping, tmp_path / "stopped", None, True)
    assert_close(tmp_path / "straight", tmp_path / "stopped", rtol=0, atol=0)
    assert lines(tmp_path / "straight") == lines(tmp_path / "stopped")


# Data.


def shuffled(batch_size=BATCH, **options):
    return DataLoader(data(), batch_size, shuffle=True, **options)  # by torch's own generator


def of_a_loader(rank, folder):
    stop = None if (folder / "config.json").exists() else 5
    trained(folder, train=shuffled(), stop=stop if rank == 1 else None)
    return trained(folder, train=shuffled(), resume=True)


def test_a_loader_is_shared_out_without_loss_or_repetition(tmp_path):
    trained(tmp_path / "one", train=shuffled())
    on_ranks(of_a_loader, tmp_path / "two")
    assert_close(tmp_path / "one", tmp_path / "two")
    assert_same_numbers(tmp_path / "one", tmp_path / "two")


def translator(generator, **options):
    return Transformer(generator=generator, **options).double()


def writer(generator, **options):
    return GPT(generator=generator, **options).double()


SHORT = ("model_options.dropout=0", "epochs=2")
TASKS = {
    "translation": lambda: replace(translation(*SHORT), model=translator),
    "language": lambda: replace(language(*SHORT), model=writer),
    "images, by a search": lambda: small("batch_size=31", "method=firefly"),
    "images, at full size": lambda: small("epochs=2", "fixed=true"),
}


def of_a_task(rank, kind, folder):
    return Trainer(TASKS[kind](), folder, progress=Silence()).fit()


SLOW = ("translation", "images, by a search")
MARKED = [pytest.param(k, marks=[pytest.mark.slow] * (k in SLOW)) for k in TASKS]


@pytest.mark.parametrize("kind", MARKED)
def test_the_tasks_are_shared_out(kind, tmp_path):
    """What is padding has no weight; a search is on whole batches. Images come as float32."""
    tolerance = {"rtol": 1e-3, "atol": 1e-5} if "images" in kind else {}
    alone = of_a_task(0, kind, tmp_path / "one")
    both = on_ranks(of_a_task, kind, tmp_path / "two")
    assert both[0] == both[1]
    assert both[0].scores == pytest.approx(alone.scores, rel=1e-6)
    assert (both[0].flops, both[0].search_flops) == (alone.flops, alone.search_flops)
    assert_close(tmp_path / "one", tmp_path / "two", **tolerance)
    assert_same_numbers(tmp_path / "one", tmp_path / "two", rel=1e-2 if tolerance else 1e-9)


# What goes wrong on one process goes wrong on all, and is said.


class Failing(Vectors):
    """A stream that the second process cannot read."""

    def _preparing(self):
        return nullcontext(lambda chosen: lambda: self._read(chosen))

    def _read(self, chosen):
        if self.position and torch.distributed.get_rank() == 1:
            raise InputError("image 7 is damaged.")
        return self.inputs[chosen], self.targets[chosen]


def poisoned():
    """The rows of the second slice of some batch are not finite."""
    x, y = data().tensors
    return [(x[:BATCH], y[:BATCH]), (torch.cat([x[:6], x[:6] * torch.nan]), y[:BATCH])]


def sum_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


def weighted_loss(outputs, targets):
    weight = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    return nn.functional.cross_entropy(outputs, targets, weight)


def another_order():
    order = torch.randperm(
        EXAMPLES, generator=torch.Generator().manual_seed(torch.distributed.get_rank())
    )
    return DataLoader(data(), BATCH, sampler=order.tolist())


def fewer_batches():
    x, y = data().tensors
    count = 3 - torch.distributed.get_rank()
    return [(x[:BATCH], y[:BATCH])] * count


def distributed_loader():
    return DataLoader(data(), BATCH, sampler=DistributedSampler(data(), 2, 0))


WRONG = {
    "a loss that is not finite": (
        lambda: {"train": poisoned()},
        "rank 1 failed, so nothing was changed on any: the loss is nan at step 1, stage 0, as the inputs",
    ),
    "data that one process cannot read": (
        lambda: {"train": failing()},
        "rank 1 failed, so nothing was changed on any: image 7 is damaged.",
    ),
    "loaders in another order": (
        lambda: {"train": another_order()},
        "the training batches of the processes differ: each process has to get all batches",
    ),
    "a sampler of its own": (
        lambda: {"train": distributed_loader()},
        "train has a DistributedSampler, which gives each process other batches",
    ),
    "a sum": (
        lambda: {"loss": sum_loss},
        "the loss cannot be shared out to 2 processes: on the first",
    ),
    "weights": (lambda: {"loss": weighted_loss}, "the loss cannot be shared out to 2 processes"),
    "compiled": (
        lambda: {"settings": ("compile=true",)},
        "compile=True cannot be had with 2 processes: a program for each stage",
    ),
    "loaders of other lengths": (
        lambda: {"train": fewer_batches()},
        "differ in the number of training examples: 36 on rank 0; 24 on rank 1.",
    ),
    "a folder that cannot be": (
        lambda: {"resume": True},
        "holds no run: there is no config.json in it.",
    ),
    "orders": (
        lambda: {"train": in_an_order_of_its_own()},
        "the processes differ in the order of the training data:",
    ),
    "seeds": (
        lambda: {"settings": (f"seed={torch.distributed.get_rank()}",)},
        "the processes differ in the recipe's seed: 0 on rank 0; 1 on rank 1.",
    ),
}


def in_an_order_of_its_own():
    return Vectors(
        *data().tensors, BATCH, torch.Generator().manual_seed(torch.distributed.get_rank())
    )


def failing():
    generator = torch.Generator().manual_seed(1)
    return Failing(*data().tensors, BATCH, generator)


def gone_wrong(rank, kind, folder):
    try:
        return trained(folder, **WRONG[kind][0]())
    except GrowthError as error:
        return str(error)


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_on_one_process_is_said_by_the_first(kind, tmp_path):
    said = on_ranks(gone_wrong, kind, tmp_path / "run")
    assert WRONG[kind][1] in said[0]


def in_a_folder_that_is_taken(rank, folder):
    try:
        return trained(folder)
    except GrowthError as error:
        return str(error)


def test_a_folder_with_a_run_is_refused_by_all(tmp_path):
    trained(tmp_path / "run", stop=3)
    kept = sorted(p.name for p in (tmp_path / "run").rglob("*"))
    said = on_ranks(in_a_folder_that_is_taken, tmp_path / "run")
    assert said[0] == said[1] and "already holds a run. Go on with" in said[0]
    assert sorted(p.name for p in (tmp_path / "run").rglob("*")) == kept


def test_processes_that_are_no_group_are_refused(tmp_path, monkeypatch):
    for name, value in {
        "RANK": 0,
        "WORLD_SIZE": 2,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(
        InputError, match="torchrun has started 2 processes, but they are no group yet"
    ):
        trained(tmp_path)


def test_other_commands_are_refused_by_the_first_process(tmp_path, monkeypatch, capsys):
    for rank in (0, 1):
        for name, value in {
            "RANK": rank,
            "WORLD_SIZE": 2,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": 1,
        }.items():
            monkeypatch.setenv(name, str(value))
        assert main(["report", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert ("only `growthring train` shares its work out to several" in said) == (rank == 0)
        with pytest.raises(SystemExit):
            main(["train", "--no-such-option"])
        assert bool(capsys.readouterr().err) == (rank == 0)
