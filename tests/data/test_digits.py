import re
from importlib.resources import files

import torch

from growthring.data import load

COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as UCI states them


def test_all_digits_are_there_once():
    train, test = load("digits")
    assert (len(train), len(test)) == (1297, 500)
    assert torch.bincount(test.labels).tolist() == [50] * 10
    assert torch.bincount(train.labels).tolist() == [count - 50 for count in COUNTS]
    for data in (train, test):
        assert data.images.shape[1:] == (1, 8, 8) and data.num_classes == 10
    levels = torch.cat([train.images, test.images]).unique()
    assert levels.tolist() == [round(count * 255 / 16) for count in range(17)]


def test_the_first_image_is_the_zero_that_the_file_starts_with():
    train, _ = load("digits")
    assert train.labels[:10].tolist() == list(range(10))
    row = [0, 0, 5, 13, 9, 1, 0, 0]
    assert train.images[0, 0, 0].tolist() == [round(count * 255 / 16) for count in row]


def test_neighbours_tell_the_digit():
    train, test = load("digits")
    distance = torch.cdist(test.images.flatten(1).float(), train.images.flatten(1).float())
    found = train.labels[distance.argmin(1)]
    assert (found == test.labels).float().mean() > 0.94


def test_source_and_licence_are_with_it():
    text = files("growthring.data").joinpath("LICENSE-digits.txt").read_text(encoding="utf-8")
    assert re.search(r"CC BY 4\.0", text) and "10.24432/C50P49" in text and "Alpaydin" in text
