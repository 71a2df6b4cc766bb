"""Text as data: windows, recipes that train on them, resuming, export and evaluation."""

import re

import pytest
import torch

from growthring.data import TextBatches, TextData, load_text
from growthring.errors import GrowthError, InputError
from growthring.train import Interrupted, Recipe, Silence, Trainer, change, load
from growthring.train.evaluation import evaluate_card
from growthring.train.measure import batch_sums
from growthring.zoo.gpt import GPT
from tests.train.runs import Killer

TEXT = TextData("count", torch.arange(200, dtype=torch.uint8))
SMALL = {"vocab_size": 256, "block_size": 8, "num_layers": 1, "num_heads": 2, "width": 16}


BOTH = {"model": SMALL | {"num_heads": 4}, "heads": "both", "start": 0.25}


def recipe(model=SMALL, **settings):
    options = {
        "data": "python",
        "input_shape": (8,),
        "num_train": 64,
        "epochs": 4,
        "batch_size": 16,
    }
    options |= {"optimizer": "adamw", "lr": 1e-2, "stages": 2}
    return Recipe("text", GPT, model, **{**options, **settings})


def windows(stream):
    return torch.cat([inputs for inputs, _ in stream])


def test_targets_are_the_bytes_that_follow():
    for generator in (None, torch.Generator().manual_seed(0)):
        for inputs, targets in TextBatches(TEXT, 3, 8, generator):
            assert inputs.dtype == targets.dtype == torch.int64
            assert torch.equal(targets[:, :-1], inputs[:, 1:])
            assert torch.equal(targets[:, -1], inputs[:, -1] + 1)


def test_epochs_take_other_windows_from_all_over_the_text():
    stream = TextBatches(TEXT, 4, 8, torch.Generator().manual_seed(0), per_epoch=6)
    firsts = [windows(stream)[:, 0] // 8 for _ in range(4)]
    assert all(len(first) == 6 and first.max() - first.min() > 12 for first in firsts)
    assert not torch.equal(firsts[0].sort().values, firsts[1].sort().values)


def test_a_stream_goes_on_where_it_was_saved():
    first = TextBatches(TEXT, 4, 8, torch.Generator().manual_seed(0), per_epoch=12)
    windows(first), next(iter(first))
    again = TextBatches(TEXT, 4, 8, torch.Generator(), per_epoch=12)
    again.load_state_dict(first.state_dict())
    assert torch.equal(windows(first), windows(again))


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(bytes(range(250)) * 8)
    train, test = load_text("text", path)
    assert (len(train), len(test)) == (1800, 200) and test.values[0] == 1800 % 250


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: load_text("text"), "'text' is a file of your own"),
        (lambda p: load_text("text", p / "none"), "cannot be read"),
        (lambda p: load_text("text", p), "cannot be read"),
        (lambda p: (p / "t").write_text("short") and load_text("text", p / "t"), "has 5 bytes"),
        (lambda p: TextBatches(TEXT, 2, 200, None), "shorter than a window of 200 bytes"),
        (lambda p: Trainer(recipe(input_shape=(1, 8, 8)), p / "run"), "such as (64,)"),
        (
            lambda p: Trainer(change(recipe(), {"model_options.vocab_size": 100}), p / "run"),
            "100 tokens",
        ),
        (
            lambda p: Trainer(change(recipe(), {"model_options.block_size": 4}), p / "run"),
            "block_size",
        ),
    ],
)
def test_what_cannot_work_is_refused(make, message, tmp_path):
    with pytest.raises(GrowthError, match=re.escape(message)):
        make(tmp_path)


@pytest.mark.parametrize("settings", [{}, BOTH], ids=["default", "both factors"])
def test_a_recipe_is_trained_resumed_and_evaluated(tmp_path, settings):
    whole = Trainer(recipe(**settings), tmp_path / "whole", progress=Silence())
    result = whole.fit()
    assert 0 < result.test_accuracy < 1 and result.test_loss < 5.5

    def stop():
        raise KeyboardInterrupt

    with pytest.raises((Interrupted, KeyboardInterrupt)):
        options = {"progress": Killer(7, stop), "checkpoint_steps": 3}
        Trainer(recipe(**settings), tmp_path / "stopped", **options).fit()
    stopped = Trainer(recipe(**settings), tmp_path / "stopped", progress=Silence())
    stopped.resume()
    stopped.fit()
    again = stopped.model.state_dict()
    assert all(torch.equal(value, again[name]) for name, value in whole.model.state_dict().items())
    model, card = load(tmp_path / "whole" / "model.safetensors")
    found = evaluate_card(model, card)
    assert (found.test_loss, found.test_accuracy) == (result.test_loss, result.test_accuracy)


def test_right_answers_are_counted_by_place_and_not_where_the_axis_is_in_doubt():
    outputs = torch.nn.functional.one_hot(torch.tensor([[1, 2, 3], [0, 0, 0]]), 5).float()
    targets = torch.tensor([[1, 2, 0], [0, 1, 1]])
    sums = batch_sums(torch.tensor(1.0), outputs, (targets, targets))
    assert sums.tolist() == [6, 3, 6]
    square = torch.zeros(2, 3, 3)
    assert batch_sums(torch.tensor(1.0), square, (targets, targets))[1].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_of_equal_outputs_the_first_is_the_answer(dtype, generator):
    outputs = torch.randint(4, (50, 7, 9), generator=generator).to(dtype)  # many are equal
    outputs[0, 0, 5:] = torch.nan
    targets = torch.randint(9, (50, 7), generator=generator)
    targets[0, 0] = 5
    targets[:, 6] = -100
    sums = batch_sums(torch.tensor(0.5), outputs.requires_grad_(), (targets, targets))
    right = int((outputs.argmax(-1) == targets).sum())
    assert sums.tolist() == [0.5 * 300, right, 300] and right > 0
    transposed = outputs.detach().transpose(0, 1)
    again = batch_sums(torch.tensor(0.5), transposed, (targets.T, targets.T))
    assert torch.equal(sums, again)


def test_only_known_texts():
    with pytest.raises(InputError, match="no data set 'poems'"):
        Trainer(recipe(data="poems", input_shape=(1, 8, 8)), "unused")
