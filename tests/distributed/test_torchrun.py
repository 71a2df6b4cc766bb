"""A recipe that several processes train is the recipe that one process trains."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from growthring.checkpoint import load_weights, read_json, read_jsonl
from growthring.train import Recipe, Silence, Trainer, change, parse_settings
from growthring.train.state import Interrupted
from tests.distributed_helpers import on_ranks

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

    def __init__(self, at: int) -> None:
        self.at, self.trainer = at, None

    def step(self, status) -> None:
        if status.step == self.at:
            self.trainer._interrupt.is_asked = True


def trained(folder, kind="sgd", stop=None, resume=False, **options):
    """Trains in a folder, or goes on there; the result, or the words with which it stopped."""
    given = {"model": net, "train": data(), "test": data(9), "log_rates": 0, **options}
    progress = Silence() if stop is None else Stopping(stop)
    trainer = Trainer(recipe(kind), folder, progress=progress, **given)
    if stop is not None:
        trainer.progress = progress
        progress.trainer = trainer
    if resume:
        trainer.resume()
    try:
        return trainer.fit()
    except Interrupted as stopped:
        return str(stopped)


def on_rank(rank, *args):
    """The same on each rank; only the second one is asked to stop."""
    folder, kind, stop, resume = args
    return trained(folder, kind, stop if rank == 1 else None, resume)


def assert_close(a, b):
    one, other = (load_weights(folder / "model.safetensors") for folder in (a, b))
    assert list(one) == list(other)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-10, atol=1e-10)


def lines(folder):
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "cpu_seconds")}
        for line in read_jsonl(folder / "metrics.jsonl")
    ]


def assert_same_numbers(a, b):
    for one, other in zip(lines(a), lines(b), strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            if isinstance(value, float):
                assert value == pytest.approx(other[key], rel=1e-9), key
            else:
                assert value == other[key], key


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_are_one_through_two_growths(tmp_path, kind):
    alone = trained(tmp_path / "one", kind)
    both = on_ranks(on_rank, tmp_path / "two", kind, None, False)
    assert both[0] == both[1]
    assert_close(tmp_path / "one", tmp_path / "two")
    assert_same_numbers(tmp_path / "one", tmp_path / "two")
    assert [line["stage"] for line in lines(tmp_path / "two") if line["kind"] == "growth"] == [1, 2]
    assert (both[0].flops, both[0].steps) == (alone.flops, alone.steps)
    assert both[0].notes == ("trained by 2 processes.",)
    assert "2 processes" in read_json(tmp_path / "two/config.json")["machine"]
