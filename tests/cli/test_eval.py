"""growthring eval: the accuracy that the run reported, and what it refuses."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from growthring import zoo
from growthring.checkpoint import load_weights, read_json, save_weights, weights_metadata
from growthring.cli import main
from growthring.train import Card, Silence, Trainer
from growthring.train.card import card_of
from tests.cli.commands import OWN, one_object, run
from tests.train.runs import resnet, small


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the zoo, and its exported file."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = resnet("fixed=true", "label_smoothing=0.1")
    Trainer(recipe, folder / "run", progress=Silence()).fit()
    assert main(["export", str(folder / "run"), str(folder / "model.safetensors")]) == 0
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run of a user's own model, from a file that leaves a mark when it is run; and its exported file."""
    folder = tmp_path_factory.mktemp("own")
    mark = "open(__file__[:-3] + '.ran', 'w').close()\n"
    (folder / "my_recipes.py").write_text(mark + OWN)
    recipe = f"{folder / 'my_recipes.py'}:mine"
    more = ["--set", "model_options.width=12", "--quiet"]
    assert main(["train", "--recipe", recipe, "--out", str(folder / "run"), *more]) == 0
    assert main(["export", str(folder / "run"), str(folder / "model.safetensors")]) == 0
    (folder / "my_recipes.ran").unlink()
    return folder


@pytest.fixture
def file(trained, tmp_path):
    return shutil.copy(trained / "model.safetensors", tmp_path)


def refused(capsys, *arguments):
    status, out, err = run(capsys, "eval", *arguments)
    assert status == 2 and out == "" and "Traceback" not in err
    return err


def change(file, **changes):
    """Writes other fields into the card of a file."""
    card = card_of(weights_metadata(file))
    save_weights(file, load_weights(file), replace(card, **changes).metadata())


# The same numbers.


@pytest.mark.parametrize("name", ["run", "model.safetensors"])
def test_a_run_and_its_file_show_exactly_what_the_run_reported(trained, name, capsys):
    result = read_json(trained / "run" / "result.json")
    status, out, err = run(capsys, "eval", trained / name, "--json")
    assert status == 0 and err == ""
    found = one_object(out)
    assert found["test_accuracy"] == found["reported_accuracy"] == result["test_accuracy"]
    assert found["test_loss"] == found["reported_loss"] == result["test_loss"]
    assert found["num_examples"] == 500 and found["data"] == "digits"
    status, out, _ = run(capsys, "eval", trained / name)
    accuracy, loss = 100 * result["test_accuracy"], result["test_loss"]
    shown = f"test accuracy {accuracy:.2f} %, test loss {loss:.4g} on 500 examples\n"
    assert status == 0 and shown in out and "the same" in out


@pytest.mark.parametrize("kind", ["grey", "averaged down", "bfloat16"])
@pytest.mark.each(2)
def test_other_data_and_arithmetic(kind, capsys, tmp_path):
    """Normalised and averaged down as in the training, from an npz of the user's own."""
    draw = np.random.default_rng(0)
    labels = np.arange(80) % 10
    images = draw.integers(0, 200, (80, 16, 16), dtype=np.uint8)
    arrays = {"train_images": images, "train_labels": labels}
    np.savez(tmp_path / "mine.npz", **arrays, test_images=images[:50], test_labels=labels[:50])
    settings = {
        "grey": ["input_shape=(1,16,16)", "model_options.inputs=256", "num_train=70"],
        "averaged down": ["side=8"],
        "bfloat16": ["side=8", "precision=bfloat16"],
    }[kind]
    recipe = small("data=npz", "num_train=none", "epochs=2", "stages=2", *settings)
    trainer = Trainer(recipe, tmp_path / "run", data=tmp_path / "mine.npz", progress=Silence())
    result = trainer.fit()
    more = ["--model", "tests.train.nets:plain", "--data", tmp_path / "mine.npz", "--json"]
    status, out, err = run(capsys, "eval", tmp_path / "run", *more)
    assert status == 0, err
    found = one_object(out)
    assert found["test_accuracy"] == result.test_accuracy and found["num_examples"] == 50
    assert found["test_loss"] == result.test_loss


@pytest.mark.parametrize("data", ["folder", "imagenet"])
def test_folders_of_images(data, capsys, tmp_path):
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 5)):
        for name in ("ant", "bee"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = draw.integers(0, 255, (10, 12, 3), dtype=np.uint8)
                image.fromarray(pixels).save(tmp_path / part / name / f"{i}.png")
    shape = {"folder": "(3,10,12)", "imagenet": "(3,8,8)"}[data]
    inputs = {"folder": 360, "imagenet": 192}[data]
    model = [f"input_shape={shape}", f"model_options={{'inputs': {inputs}, 'outputs': 2}}"]
    recipe = small(
        f"data={data}", "num_train=none", "fixed=true", "epochs=1", "batch_size=4", *model
    )
    result = Trainer(recipe, tmp_path / "run", data=tmp_path, progress=Silence()).fit()
    more = ["--model", "tests.train.nets:plain", "--json", "--data"]
    status, out, err = run(capsys, "eval", tmp_path / "run", *more, tmp_path)
    assert status == 0, err
    found = one_object(out)
    assert (found["test_accuracy"], found["test_loss"]) == (result.test_accuracy, result.test_loss)
    assert card_of(weights_metadata(tmp_path / "run/model.safetensors")).classes == ("ant", "bee")
    for part in ("train", "val"):
        (tmp_path / part / "bee").rename(tmp_path / part / "cat")
    err = refused(capsys, tmp_path / "run", *more[:2], "--data", tmp_path)
    assert "label 1 is 'cat' here and 'bee' there" in err


def test_another_batch_size(file, capsys):
    status, out, _ = run(capsys, "eval", file, "--batch-size", 7, "--json")
    found = one_object(out)
    assert status == 0
    assert found["test_loss"] == pytest.approx(found["reported_loss"], rel=1e-5)
    assert "at least 1" in refused(capsys, file, "--batch-size", 0)


def test_a_difference_is_shown(file, capsys):
    change(file, test_accuracy=0.999)
    _, out, _ = run(capsys, "eval", file)
    assert "the run reported a test accuracy of 99.90 %\n" in out and "the same" not in out


# Whose code runs.


@pytest.mark.parametrize("name", ["run", "model.safetensors"])
def test_a_file_does_not_choose_what_runs(own, name, capsys):
    err = refused(capsys, own / name)
    assert "of a model that 'my_recipes.Gated' makes, which is not of growthring.zoo" in err
    assert "--recipe" in err and "--model" in err and not (own / "my_recipes.ran").exists()


@pytest.mark.parametrize("how", ["--recipe", "--model"])
def test_code_that_the_user_names(own, how, capsys):
    """The width that --set gave to the training is in the file."""
    name = {"--recipe": "mine", "--model": "Gated"}[how]
    code = f"{own / 'my_recipes.py'}:{name}"
    status, out, err = run(capsys, "eval", own / "model.safetensors", how, code, "--json")
    (own / "my_recipes.ran").unlink()
    assert status == 0, err
    found = one_object(out)
    assert found["test_accuracy"] == read_json(own / "run" / "result.json")["test_accuracy"]


NAMED = [
    "os.system",
    "growthring.cli.main",
    "growthring.zoo.resnet.nn.Linear",
    "growthring.zoo.init.init_fan_in_",
    "partial(growthring.zoo.mlp.mlp8, width=8)",
    "growthring.zoo.nothing",
]


@pytest.mark.parametrize("name", NAMED)
def test_names_that_are_no_model_of_the_zoo(name, file, capsys):
    change(file, model=name)
    assert f"'{name}' makes, which is not of growthring.zoo" in refused(capsys, file)


# What does not fit.


def test_options_that_ask_for_a_giant_allocate_nothing(file, capsys):
    change(file, model_options={"num_classes": 10, "width": 1_000_000, "in_channels": 1})
    assert "do not fit the model, a ResNet: 'conv1.weight' is (8, 1, 3, 3) in the file" in refused(
        capsys, file
    )


def test_options_that_the_function_does_not_have(file, capsys):
    change(file, model_options={"colour": "red"})
    err = refused(capsys, file)
    assert (
        "'growthring.zoo.resnet.resnet8' cannot be called with {'colour': 'red'}: TypeError" in err
    )


def test_another_model(file, capsys):
    err = refused(capsys, file, "--model", "growthring.zoo:cnn4")
    assert "do not fit the model, a CNN: 'features.0.weight' is missing in the file" in err
    assert "more. They are of 'growthring.zoo.resnet.resnet8' with" in err


def test_a_run_that_is_not_finished(trained, capsys, tmp_path):
    folder = shutil.copytree(trained / "run", tmp_path / "run")
    (folder / "result.json").unlink()
    assert "is not finished. Go on with `Trainer.resume(), then fit()`" in refused(capsys, folder)


def test_a_partial_export_does_not_fit_the_full_size_model(file, capsys):
    card = replace(card_of(weights_metadata(file)), width="stage 0 of a plan with stages 0 to 2")
    thin = zoo.resnet8(num_classes=10, width=4, in_channels=1)
    save_weights(file, thin.state_dict(), card.metadata())
    assert "not of full size (stage 0 of a plan with stages 0 to 2)" in refused(capsys, file)


def test_a_file_without_a_card(trained, capsys, tmp_path):
    """The recipe says everything: the model, the data and, from the training images, mean and deviation."""
    file = tmp_path / "plain.safetensors"
    save_weights(file, load_weights(trained / "model.safetensors"))
    err = refused(capsys, file)
    assert "has no card of growthring in its metadata" in err and "Give --recipe" in err
    settings = ["model_options.width=8", "num_train=96", "label_smoothing=0.1"]
    more = [part for setting in settings for part in ("--set", setting)]
    status, out, _ = run(capsys, "eval", file, "--recipe", "demo", *more, "--json")
    found, result = one_object(out), read_json(trained / "run" / "result.json")
    assert status == 0 and found["reported_accuracy"] is None
    assert found["test_accuracy"] == result["test_accuracy"]
    assert found["test_loss"] == result["test_loss"]
    assert "--set changes a setting of --recipe" in refused(capsys, file, "--set", "epochs=3")


@pytest.mark.parametrize("size", [0, 5, 100, 5000])
def test_a_truncated_file(size, file, capsys):
    os.truncate(file, size)
    assert "not a safetensors file, or a truncated one" in refused(capsys, file)


def test_a_file_that_is_not_there(capsys, tmp_path):
    assert "cannot read" in refused(capsys, tmp_path / "no.safetensors")
    assert "holds no run" in refused(capsys, tmp_path)


CARDS = {
    "not JSON": ("{", "the metadata 'growthring' is not JSON"),
    "a list": ("[]", "the card is []; allowed is an object"),
    "another version": ({"version": 2}, "has version 2, this growthring reads 1"),
    "an unknown field": ({"code": "evil()"}, "the card has no field 'code'"),
    "no model": ({"model": None}, "'model' of the card is None; allowed is str"),
    "a shape": ({"input_shape": [0]}, "'input_shape' of the card is [0]; allowed is"),
    "a batch": ({"batch_size": 10**18}, "'batch_size' of the card"),
    "classes": ({"classes": [1]}, "'classes' of the card is [1]; allowed is a list of str or None"),
    "versions": ({"versions": {"a": 1}}, "'versions' of the card"),
    "an accuracy": ({"test_accuracy": "NaN"}, "'test_accuracy' of the card is nan"),
    "precision": ({"precision": "int8"}, "precision='int8' is not"),
    "a data set": ({"data": "../../etc"}, "there is no data set '../../etc'"),
    "no data": ({"data": None}, "trained on batches of your own program"),
}


@pytest.mark.parametrize(("changes", "says"), CARDS.values(), ids=CARDS.keys())
def test_a_card_that_no_export_writes(changes, says, file, capsys):
    content = json.loads(weights_metadata(file)["growthring"])
    text = changes if isinstance(changes, str) else json.dumps(content | changes)
    save_weights(file, load_weights(file), {"growthring": text})
    assert says in refused(capsys, file)


PREPROCESSING = {
    "a text": ("mean 0.5", "'preprocessing' of the card is 'mean 0.5'"),
    "no numbers": ({"mean": ["a"]}, "'preprocessing.mean' of the card is ['a']"),
    "not finite": ({"std": ["NaN"]}, "'preprocessing.std' of the card is [nan]"),
    "zero": ({"std": [0.0]}, "every channel needs a deviation above 0"),
    "another layout": ({"layout": "NHWC"}, "'preprocessing.layout' of the card is 'NHWC'"),
    "unknown": ({"resizing": "magic"}, "resizing='magic' is not one of none, area, crop"),
    "channels": ({"mean": [0.5, 0.5], "std": [1, 1]}, "is for 2 channels, 'digits' has 1"),
}


@pytest.mark.parametrize(("changes", "says"), PREPROCESSING.values(), ids=PREPROCESSING.keys())
def test_preprocessing_that_cannot_be(changes, says, file, capsys):
    content = json.loads(weights_metadata(file)["growthring"])
    known = content["preprocessing"]
    content["preprocessing"] = changes if isinstance(changes, str) else known | changes
    save_weights(file, load_weights(file), {"growthring": json.dumps(content)})
    assert says in refused(capsys, file)


def test_wrong_data(file, capsys, tmp_path):
    images = np.zeros((20, 8, 8, 3), np.uint8)
    labels = np.arange(20) % 11
    arrays = {"train_images": images, "train_labels": labels, "test_labels": labels}
    np.savez(tmp_path / "rgb.npz", **arrays, test_images=images)
    change(file, data="npz")
    err = refused(capsys, file, "--data", tmp_path / "rgb.npz")
    assert "the images of 'rgb' are 3×8×8, the model takes 1×8×8" in err
    assert "pass its path as root" in refused(capsys, file)
    arrays["train_images"] = images[..., 0]
    np.savez(tmp_path / "more.npz", **arrays, test_images=images[..., 0])
    err = refused(capsys, file, "--data", tmp_path / "more.npz")
    assert "'more' has the label 10, but the model has 10 outputs" in err
    change(file, data="cifar10")
    assert "cifar10: found neither" in refused(capsys, file, "--data", tmp_path)


def test_labels_that_mean_something_else(file, capsys):
    change(file, classes=tuple("0123456798"))
    err = refused(capsys, file)
    assert (
        "'digits' has 10 classes, the model was trained on 10: label 8 is '8' here and '9' there"
        in err
    )


def test_a_regression_is_not_evaluated(capsys, tmp_path):
    card = Card("growthring.zoo.mlp.mlp8", {"width": 4}, (1, 8, 8), "mine", fading=("norm",))
    save_weights(tmp_path / "m.safetensors", zoo.mlp8(width=4).state_dict(), card.metadata())
    err = refused(capsys, tmp_path / "m.safetensors")
    assert "trained on batches of your own program" in err
    assert "warning: " in err and "was exported while norms were fading in" in err


def test_what_a_name_holds_does_not_steer_the_terminal(file, capsys):
    change(file, model="\x1b[31mevil")
    assert "\x1b" not in refused(capsys, file)


def test_the_weights_are_not_changed_by_an_evaluation(trained, capsys):
    before = load_weights(trained / "model.safetensors")
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert run(capsys, "eval", trained / "model.safetensors")[0] == 0
    after = load_weights(trained / "model.safetensors")
    assert all(before[name].equal(after[name]) for name in before)
    assert torch.get_rng_state().equal(state)
