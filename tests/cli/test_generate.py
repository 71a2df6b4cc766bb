"""growthring generate: text from a run and its file, and what it refuses."""

import io
import shutil
import sys
import types
from dataclasses import replace

import pytest
import torch

from growthring.checkpoint import load_weights, save_weights, weights_metadata
from growthring.cli import main
from growthring.cli.generate import _decoder, _texts
from growthring.decoding import generate
from growthring.train import RECIPES, Silence, Trainer, change, load, parse_settings
from growthring.train.card import card_of
from tests.cli.commands import one_object, run
from tests.train.runs import Killer, resnet

SETTINGS = (
    *("epochs=2", "num_train=64", "input_shape=(16,)", "model_options.block_size=16"),
    *("model_options.width=16", "model_options.num_heads=2", "model_options.num_layers=1"),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny run of python-gpt, and its exported file."""
    folder = tmp_path_factory.mktemp("trained")
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    out = ["--out", str(folder / "run"), "--quiet"]
    assert main(["train", "--recipe", "python-gpt", *settings, *out]) == 0
    assert main(["export", str(folder / "run"), str(folder / "model.safetensors")]) == 0
    return folder


def said(capsys, *arguments):
    status, out, err = run(capsys, "generate", *arguments)
    assert (status, err) == (0, ""), err
    return out


def refused(capsys, *arguments):
    status, out, err = run(capsys, "generate", *arguments)
    assert status == 2 and out == "" and "Traceback" not in err
    return err


def stdin(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(content)))


def card_changed(trained, tmp_path, **changes):
    """The file with another card."""
    file = shutil.copy(trained / "model.safetensors", tmp_path)
    card = card_of(weights_metadata(file))
    save_weights(file, load_weights(file), replace(card, **changes).metadata())
    return file


@pytest.mark.parametrize("name", ["run", "model.safetensors"])
def test_a_run_and_its_file_go_on_with_a_text(trained, name, capsys):
    """In the bytes that the library gives, beyond the context of 16, too."""
    out = one_object(said(capsys, trained / name, "def ", "--tokens", 40, "--json"))
    model, _ = load(trained / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    options = {"num_tokens": 40, "temperature": 0.8, "generator": generator}
    found = bytes(generate(model, torch.tensor(list(b"def ")), **options))
    assert out == {"prompt": "def ", "text": found.decode(errors="replace")}


def test_the_text_follows_the_prompt(trained, capsys):
    out = said(capsys, trained / "run", "def ", "--tokens", 5)
    assert out.startswith("def ") and len(out) >= len("def ") + 2 and out.endswith("\n")
    assert said(capsys, trained / "run", "def ", "--tokens", 0) == "def \n"


def test_seeds_and_temperatures(trained, capsys):
    def text(*options):
        return said(capsys, trained / "run", "def ", "--tokens", 30, "--json", *options)

    assert text() == text("--seed", 0) != text("--seed", 1)
    assert text("--seed", 1) == text("--seed", 1)
    greedy = text("--temperature", 0)
    assert greedy == text("--temperature", 0, "--seed", 1) == text("--top-k", 1)
    assert greedy == text("--top-p", 1e-9, "--seed", 2) != text()


def test_lines_and_tabs_are_shown_as_they_are_and_controls_are_not(trained, capsys):
    prompt = "if x:\n\tdef f(ä):\r\n\x1b[31m\a"
    out = said(capsys, trained / "run", prompt, "--tokens", 0)
    assert out == "if x:\n\tdef f(ä):\n?[31m?\n"
    (pieces,) = (one_object(said(capsys, trained / "run", prompt, "--tokens", 0, "--json")),)
    assert pieces == {"prompt": prompt, "text": ""}  # JSON escapes them itself


def test_a_character_of_two_tokens_is_one_and_what_is_none_is_marked():
    assert (
        "".join(_texts([*"aä€".encode(), 0xFF, 300, 0xC3], _decoder())) == "aä€\ufffd\ufffd\ufffd"
    )


def test_a_prompt_from_standard_input(trained, capsys, monkeypatch):
    stdin(monkeypatch, b"def \n\xff")
    out = one_object(said(capsys, trained / "run", "-", "--tokens", 3, "--json"))
    assert out["prompt"] == "def \n\ufffd" and out["text"]
    stdin(monkeypatch, b"")
    assert "the prompt is empty" in refused(capsys, trained / "run", "-")


def test_a_prompt_of_bytes_that_are_no_text(trained, capsys):
    out = said(capsys, trained / "run", "a\udcff", "--tokens", 0)  # as the shell's arguments come
    assert out == "a\ufffd\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["", "--tokens", 3], "the prompt is empty: a model goes on from at least one byte"),
        (["a", "--tokens", -1], "--tokens -1: it is 0 or more."),
        (["a", "--temperature", -1], "temperature=-1.0: it is 0, for the likeliest token"),
        (["a", "--temperature", "nan"], "temperature=nan"),
        (["a", "--top-k", 0], "top_k=0: it is how many"),
        (["a", "--top-p", 2], "top_p=2.0: it is a probability"),
        (["a", "--device", "nowhere"], "device 'nowhere' cannot be used"),
        (["a", "--set", "lr=1"], "--set changes a setting of --recipe."),
    ],
)
def test_arguments_that_cannot_be(trained, arguments, message, capsys):
    assert message in refused(capsys, trained / "run", *arguments)


def test_models_of_other_tasks(trained, capsys, tmp_path):
    Trainer(resnet("fixed=true", "epochs=1"), tmp_path / "run", progress=Silence()).fit()
    err = refused(capsys, tmp_path / "run", "a")
    assert "is a model of the task 'classification', not of 'language'" in err
    file = card_changed(trained, tmp_path, task="translation")
    err = refused(capsys, file, "a")
    assert "is a model of the task 'translation', not of 'language'" in err
    file = card_changed(trained, tmp_path, data=None)
    err = refused(capsys, file, "a")
    assert "tokens of your own program" in err and "growthring.decoding.generate" in err
    file = card_changed(trained, tmp_path, task=None)  # runs of before do not say it
    assert said(capsys, file, "a", "--tokens", 0) == "a\n"


def test_a_file_without_a_card_and_one_of_other_code(trained, capsys, tmp_path):
    file = tmp_path / "plain.safetensors"
    save_weights(file, load_weights(trained / "model.safetensors"))
    assert "has no card of growthring" in refused(capsys, file, "a")
    file = card_changed(trained, tmp_path, model="their.own.GPT")
    err = refused(capsys, file, "a")
    assert "'their.own.GPT' makes" in err and "eval (or generate) --recipe" in err
    out = said(capsys, file, "a", "--tokens", 0, "--model", "growthring.zoo:GPT")
    assert out == "a\n"


def test_an_unfinished_run(capsys, tmp_path):
    def stop():
        raise RuntimeError("stopped")

    recipe = change(RECIPES["python-gpt"](), parse_settings(SETTINGS))
    with pytest.raises(RuntimeError, match="stopped"):
        Trainer(recipe, tmp_path / "run", progress=Killer(2, stop)).fit()
    err = refused(capsys, tmp_path / "run", "a")
    assert "is not finished. Go on with `" in err and "resume" in err
