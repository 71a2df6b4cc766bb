"""Cards of trainings with parts of the user's own, and models made of them."""

import functools

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.checkpoint import save_weights
from growthring.errors import InputError
from growthring.train.card import Card, card_of, describe_training
from growthring.train.evaluation import card_of_recipe
from growthring.train.loading import ZOO, build
from tests.train.nets import plain, regression
from tests.train.runs import small


def test_a_training_with_parts_of_ones_own():
    """What growthring does not know is not made up."""
    make = functools.partial(plain, width=4)
    own = {"model": make, "has_own_data": True, "has_own_loss": True}
    card = describe_training(small("side=4"), regression(None), torch.zeros(2, 6), **own)
    assert card.model == "partial(tests.train.nets.plain, width=4)" and card.model_options == {}
    assert card.input_shape == (6,) and card.batch_size == 16
    unknown = (card.data, card.preprocessing, card.classes, card.label_smoothing)
    assert unknown == (None, None, None, None)
    assert "not known: data of your own program" in str(card) and "data of your own" in str(card)
    assert card_of(card.metadata()) == card


def test_tokens_are_whole_numbers():
    card = describe_training(small(), None, {"ids": torch.zeros(2, 9, dtype=torch.int64)})
    assert (card.input_type, card.input_shape) == ("int64", (9,)) and "int64 (n, 9)" in str(card)


def test_a_training_without_test_data():
    card = describe_training(small(), None, (torch.zeros(2, 1, 8, 8),))
    assert card.preprocessing is None and card.data == "digits" and card.batch_size == 500


def test_the_card_of_a_recipe_is_measured_on_its_training_images():
    card = card_of_recipe(small("num_train=50", "side=4", "input_shape=(1,4,4)"), None)
    train = gr.data.load("digits")[0].subset(50).resize(4)
    assert (card.preprocessing.mean, card.preprocessing.std) == train.mean_std()
    assert card.preprocessing.resizing == "area" and card.input_shape == (1, 4, 4)
    assert card_of(card.metadata()) == card


def test_values_survive_the_file_to_the_last_digit():
    card = Card("m", {"width": 3, "p": 0.1}, (1,), "r", test_loss=float("inf"), test_accuracy=1 / 3)
    assert card_of(card.metadata()) == card


@pytest.fixture
def file(tmp_path):
    card = Card("tests.train.nets.plain", {"width": 4}, (1, 8, 8), "mine")
    save_weights(tmp_path / "own.safetensors", plain(width=4).state_dict(), card.metadata())
    return tmp_path / "own.safetensors"


def test_load_calls_the_function_that_it_is_given_and_no_other(file):
    with pytest.raises(InputError, match=r"not choose what runs .* growthring\.load\(path, model="):
        gr.load(file)
    model, card = gr.load(file, plain)
    assert card.model_options == {"width": 4} and not model.training
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_load_names_what_is_wrong(file, tmp_path):
    with pytest.raises(
        InputError, match=r"a Sequential: '1\.weight' is \(4, 64\) in the file and \(8"
    ):
        gr.load(file, lambda width: plain(width=8))
    with pytest.raises(InputError, match=r"cannot be called with \{'width': 4\}: TypeError"):
        gr.load(file, lambda: plain(width=4))
    with pytest.raises(InputError, match=r"returned a str, not an nn\.Module"):
        gr.load(file, lambda width: "model")
    save_weights(tmp_path / "plain.safetensors", plain().state_dict())
    with pytest.raises(InputError, match="has no card of growthring in its metadata"):
        gr.load(tmp_path / "plain.safetensors")


SIZES = {name: make for name, make in ZOO.items() if make.__name__.islower()}


@pytest.mark.parametrize("name", SIZES)
def test_functions_of_the_zoo_are_checked_without_their_weights(name):
    """On the meta device: 124 million parameters are not allocated to find out that they do not fit."""
    card = Card(name, {}, (1,), "mine")
    with pytest.raises(InputError, match="do not fit the model"):
        build(card, nn.Linear(2, 2).state_dict(), "'file'")
