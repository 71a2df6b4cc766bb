"""growthring export: the plain full-size weights of a run."""

import json
import os

import pytest
import torch
from safetensors import safe_open

import growthring as gr
from growthring.checkpoint import (
    list_checkpoints,
    load_weights,
    read_json,
    save_weights,
    weights_metadata,
)
from growthring.data import load
from growthring.train import Silence, Trainer
from growthring.train.card import card_of
from growthring.train.setup import make_model, make_streams
from tests.cli.commands import one_object, run
from tests.train.nets import normed
from tests.train.runs import Killer, resnet, small

RECIPES = {"resnet": resnet, "layer norm": lambda: small(model=normed)}


def stop():
    raise RuntimeError("stopped by the test")


@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.each(2)
def test_weights_load_strictly_and_give_the_reported_accuracy(kind, capsys, tmp_path):
    recipe = RECIPES[kind]()
    Trainer(recipe, tmp_path / "run", progress=Silence()).fit()
    file = tmp_path / "model.safetensors"
    status, out, _ = run(capsys, "export", tmp_path / "run", file)
    assert status == 0 and out.startswith(f"wrote {file}\nmodel:         ")
    generator = torch.Generator().manual_seed(5)
    model = make_model(recipe, generator)
    model.load_state_dict(load_weights(file), strict=True)
    model.eval()
    test = make_streams(recipe, None, generator, torch.device("cpu")).test
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in test)
    result = read_json(tmp_path / "run" / "result.json")
    assert right / 500 == pytest.approx(result["test_accuracy"], abs=1e-12)


def test_safetensors_itself_reads_it(capsys, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    Trainer(small(), tmp_path / "run", progress=Silence()).fit()
    file = tmp_path / "model.safetensors"
    assert run(capsys, "export", tmp_path / "run", file)[0] == 0
    ours = load_weights(tmp_path / "run" / "model.safetensors")
    theirs = safetensors.load_file(file)
    assert set(ours) == set(theirs) and all(ours[n].equal(theirs[n]) for n in ours)


def test_an_unfinished_run_is_refused_unless_asked_for(capsys, tmp_path):
    with pytest.raises(RuntimeError, match="stopped"):
        Trainer(small(), tmp_path / "run", checkpoint_steps=1, progress=Killer(5, stop)).fit()
    file = tmp_path / "model.safetensors"
    status, out, err = run(capsys, "export", tmp_path / "run", file)
    assert status == 2 and out == "" and "--partial" in err and "resume()" in err
    assert not file.exists()
    status, _, _ = run(capsys, "export", tmp_path / "run", file, "--partial")
    shapes = {name: tuple(w.shape) for name, w in load_weights(file).items()}
    assert status == 0 and shapes["1.weight"] == (4, 64)


def test_the_file_says_how_to_use_it(capsys, tmp_path):
    Trainer(resnet("fixed=true", "num_train=200"), tmp_path / "run", progress=Silence()).fit()
    file = tmp_path / "model.safetensors"
    status, out, err = run(capsys, "export", tmp_path / "run", file, "--json")
    assert status == 0 and err == ""
    told = one_object(out)
    with safe_open(file, "pt") as opened:  # as a stranger reads it
        card = json.loads(opened.metadata()["growthring"])
    assert told == {"file": str(file), "card": card}
    train = load("digits")[0].subset(200)
    (mean,), (std,) = train.mean_std()
    result = read_json(tmp_path / "run" / "result.json")
    versions = card.pop("versions")
    assert card == {
        "version": 1,
        "model": "growthring.zoo.resnet.resnet8",
        "model_options": {"num_classes": 10, "width": 8, "in_channels": 1},
        "input_shape": [1, 8, 8],
        "input_type": "float32",
        "recipe": "demo",
        "task": "classification",
        "data": "digits",
        "preprocessing": {
            "mean": [mean],
            "std": [std],
            "size": [8, 8],
            "resizing": "none",
            "shorter": None,
            "value_range": [0, 1],
            "layout": "NCHW",
        },
        "classes": list("0123456789"),
        "width": "full",
        "fading": [],
        "test_accuracy": result["test_accuracy"],
        "test_loss": result["test_loss"],
        "label_smoothing": 0.0,
        "precision": "float32",
        "batch_size": 500,
    }
    assert versions["torch"] == torch.__version__
    # What the help shows.
    model, found = gr.load(file)
    images, labels = (t[:50] for t in (load("digits")[1].images, load("digits")[1].labels))
    with torch.no_grad():
        chosen = model(found.preprocessing(images)).argmax(1)
    assert [found.classes[i] for i in chosen] == [str(int(i)) for i in chosen]
    assert len(labels) == len(chosen) and not model.training


def test_the_help_shows_how_to_load_it(capsys):
    status, out, _ = run(capsys, "export", "--help")
    assert status == 0
    for words in (
        "model, card = gr.load(",
        "card.preprocessing(images)",
        "classes",
        '"growthring"',
    ):
        assert words in out


@pytest.fixture(scope="module")
def fading(tmp_path_factory):
    """A run that was stopped in the middle of its second stage, while LayerNorms fade in."""
    folder = tmp_path_factory.mktemp("fading") / "run"
    with pytest.raises(RuntimeError, match="stopped"):
        recipe = small(model=normed)
        Trainer(recipe, folder, checkpoint_steps=1, progress=Killer(5, stop)).fit()
    return folder


def test_norms_that_fade_in_are_refused_with_the_reason(fading, capsys, tmp_path):
    """The plain weights would compute something else than the model that was trained."""
    file = tmp_path / "model.safetensors"
    status, out, err = run(capsys, "export", fading, file, "--partial")
    assert status == 2 and out == "" and not file.exists()
    assert "2 norms of" in err and "are still fading in ('block.norm', 'norm')" in err
    assert "gives other outputs than the run's" in err and "--partial --while-fading" in err


def test_norms_that_fade_in_are_exported_with_a_warning_if_asked_for(fading, capsys, tmp_path):
    file = tmp_path / "model.safetensors"
    arguments = ["export", fading, file, "--partial", "--while-fading"]
    status, out, err = run(capsys, *arguments)
    assert status == 0 and "warning: 2 norms of" in err and "fading:        2: block.norm" in out
    card = card_of(weights_metadata(file))
    assert card.fading == ("block.norm", "norm") and card.test_accuracy is None
    assert card.width == "stage 1 of a plan with stages 0 to 2, step 4"


def test_a_run_that_lacks_its_result_only(capsys, tmp_path):
    """Stopped after the last stage, when no norm fades any more: the weights are the final ones."""
    Trainer(small(model=normed), tmp_path / "run", progress=Silence()).fit()
    (tmp_path / "run" / "result.json").unlink()
    file = tmp_path / "model.safetensors"
    status, _, err = run(capsys, "export", tmp_path / "run", file, "--partial")
    card = card_of(weights_metadata(file))
    assert (status, err, card.fading) == (0, "", ()) and "stage 2 of a plan with" in card.width
    final, exported = load_weights(tmp_path / "run" / "model.safetensors"), load_weights(file)
    assert all(final[name].equal(exported[name]) for name in final)


def test_flags_that_do_not_go_together(fading, capsys, tmp_path):
    status, _, err = run(capsys, "export", fading, tmp_path / "m.safetensors", "--while-fading")
    assert status == 2 and "--while-fading is for --partial" in err


def test_a_run_without_a_card(capsys, tmp_path):
    """Runs of before: their weights are exported, and that they have no card is said."""
    Trainer(small(), tmp_path / "run", progress=Silence()).fit()
    weights = load_weights(tmp_path / "run" / "model.safetensors")
    save_weights(tmp_path / "run" / "model.safetensors", weights)
    file = tmp_path / "model.safetensors"
    status, out, err = run(capsys, "export", tmp_path / "run", file)
    assert (status, out) == (0, f"wrote {file}\n") and "has weights, but no card" in err
    assert "growthring" not in weights_metadata(file)


def test_a_small_run_is_of_the_width_of_the_seed(capsys, tmp_path):
    Trainer(small("small=true"), tmp_path / "run", progress=Silence()).fit()
    status, _, err = run(capsys, "export", tmp_path / "run", tmp_path / "model.safetensors")
    assert status == 0 and "of the seed's width, not of the full-size model" in err


def test_a_damaged_checkpoint_does_not_give_older_weights(capsys, tmp_path):
    """The final weights are in RUN/model.safetensors; those of another step are not an answer."""
    Trainer(small(), tmp_path / "run", checkpoint_steps=1, progress=Silence()).fit()
    os.truncate(list_checkpoints(tmp_path / "run")[-1][1] / "tensors.safetensors", 50)
    file = tmp_path / "model.safetensors"
    assert run(capsys, "export", tmp_path / "run", file)[0] == 0
    final, exported = load_weights(tmp_path / "run" / "model.safetensors"), load_weights(file)
    assert all(final[name].equal(exported[name]) for name in final)


def test_folders_that_hold_no_run_and_places_that_cannot_be_written(capsys, tmp_path):
    status, _, err = run(capsys, "export", tmp_path, tmp_path / "model.safetensors")
    assert status == 2 and "holds no run" in err
    Trainer(small(), tmp_path / "run", progress=Silence()).fit()
    status, _, err = run(capsys, "export", tmp_path / "run", tmp_path / "no" / "model.safetensors")
    assert status == 2 and "cannot write" in err and "Traceback" not in err
