"""growthring export: the plain full-size weights of a run."""

import os

import pytest
import torch

from growthring.checkpoint import list_checkpoints, load_weights, read_json
from growthring.train import Silence, Trainer
from growthring.train.setup import make_model, make_streams
from tests.cli.commands import run
from tests.train.nets import normed
from tests.train.runs import Killer, resnet, small

RECIPES = {"resnet": resnet, "layer norm": lambda: small(model=normed)}


def stop():
    raise RuntimeError("stopped by the test")


@pytest.mark.parametrize("kind", RECIPES)
def test_weights_load_strictly_and_give_the_reported_accuracy(kind, capsys, tmp_path):
    recipe = RECIPES[kind]()
    Trainer(recipe, tmp_path / "run", progress=Silence()).fit()
    file = tmp_path / "model.safetensors"
    status, out, _ = run(capsys, "export", tmp_path / "run", file)
    assert status == 0 and out == f"wrote {file}\n"
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
