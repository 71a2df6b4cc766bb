"""Trainer as a library: the user's own model, batches and loss."""

import functools

import pytest
import torch
from torch import nn

from growthring.checkpoint import load_weights, read_json
from growthring.data import Augmentation, Batches, load
from growthring.errors import GrowthError
from growthring.train import Recipe, Silence, Trainer
from tests.train.nets import normed, plain, regression
from tests.train.runs import Killer, assert_same_run, metrics, small


def trainer_for(folder, recipe=None, at=None, drop_last=False, **options):
    def stop():
        raise RuntimeError("stopped by the test")

    given = {
        "model": seeded,
        "train": regression(torch.Generator().manual_seed(1), drop_last),
        "test": regression(None),
        "loss": nn.functional.mse_loss,
        "progress": Silence() if at is None else Killer(at, stop),
    }
    return Trainer(recipe or small("batch_size=16"), folder, device="cpu", **given | options)


def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return normed(8, 6, 2, dropout=0.1)


def test_regression_with_the_users_own_stream(tmp_path):
    result = trainer_for(tmp_path).fit()
    assert result.test_accuracy is None and result.test_loss > 0 and result.steps == 9
    lines = [line for line in metrics(tmp_path) if line["kind"] == "epoch"]
    assert all(line["train_accuracy"] is line["test_accuracy"] is None for line in lines)
    assert read_json(tmp_path / "result.json")["test_accuracy"] is None
    model = seeded()
    model.load_state_dict(load_weights(tmp_path / "model.safetensors"), strict=True)
    model.eval()
    with torch.no_grad():
        inputs, targets = regression(None).inputs, regression(None).targets
        loss = nn.functional.mse_loss(model(inputs), targets)
    assert float(loss) == pytest.approx(result.test_loss, rel=1e-5)


@pytest.mark.parametrize("fixed", ["true", "false"])
@pytest.mark.each(2)
def test_the_users_own_run_is_resumed(fixed, tmp_path):
    recipe = small("batch_size=16", f"fixed={fixed}")
    trainer_for(tmp_path / "whole", recipe).fit()
    for at in (2, 5):
        trainer = trainer_for(tmp_path / "run", recipe, at=at, checkpoint_steps=1)
        if at > 2:
            trainer.resume()
        with pytest.raises(RuntimeError, match="stopped by the test"):
            trainer.fit()
    trainer = trainer_for(tmp_path / "run", recipe)
    trainer.resume()
    trainer.fit()
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_the_trace_does_not_use_up_batches(tmp_path):
    """The first batch is looked at for its shape; the run still begins with it."""
    seen = []

    def loss(outputs, targets):
        seen.append(targets)
        return nn.functional.mse_loss(outputs, targets)

    trainer_for(tmp_path, test=None, loss=loss).fit()
    expected = [t for _ in range(1) for _, t in regression(torch.Generator().manual_seed(1))]
    assert len(seen) == 9 and all(a.equal(b) for a, b in zip(seen, expected, strict=False))


def test_without_test_data(tmp_path):
    result = trainer_for(tmp_path, test=None).fit()
    assert result.test_accuracy is None and result.test_loss is None
    assert metrics(tmp_path)[-1]["train_loss"] > 0


def test_a_stream_that_drops_its_last_batch(tmp_path):
    """40 examples in batches of 16 are two steps an epoch, so that the rate falls to 0 within six."""
    recipe = small("batch_size=16", "lr=1.0", "warmup_steps=100000")
    trainer = trainer_for(tmp_path, recipe, drop_last=True)
    assert trainer.fit().steps == 6 == trainer.total_steps


def test_batches_of_images(tmp_path):
    train, test = load("digits")
    augmentation = Augmentation.of(train, shift=1)
    generator = torch.Generator().manual_seed(0)
    batches = Batches(train.subset(64), 32, augmentation, generator)
    evaluation = Batches(test, 500, augmentation, None)
    trainer = Trainer(
        small(),
        tmp_path,
        model=lambda: plain(6),
        train=batches,
        test=evaluation,
        progress=Silence(),
    )
    result = trainer.fit()
    assert result.steps == 6 and 0 <= result.test_accuracy <= 1
    model = plain(6)
    model.load_state_dict(load_weights(tmp_path / "model.safetensors"))
    right = sum((model.eval()(x).argmax(1) == y).sum().item() for x, y in evaluation)
    assert right / 500 == pytest.approx(result.test_accuracy)


def test_own_test_data_beside_the_recipes_training_data(tmp_path):
    _, test = load("digits")
    ten = Batches(test.subset(10), 10, Augmentation.of(test), None)
    trainer = Trainer(small(), tmp_path, test=ten, progress=Silence())
    assert trainer.test is ten


def test_a_model_by_functools_partial(tmp_path):
    recipe = Recipe(
        "mine",
        functools.partial(plain, width=8),
        input_shape=(1, 8, 8),
        shift=1,
        num_train=32,
        epochs=2,
        stages=2,
        growth=None,
    )
    assert Trainer(recipe, tmp_path, progress=Silence()).fit().epochs == 2


def test_a_model_that_cannot_grow_says_so(tmp_path):
    with pytest.raises(GrowthError):
        trainer_for(tmp_path, model=lambda: nn.Linear(6, 2)).fit()


def test_a_model_that_cannot_grow_trains_at_fixed_size(tmp_path):
    result = trainer_for(
        tmp_path / "fixed",
        small("fixed=true", "batch_size=16"),
        model=lambda: nn.Linear(6, 2),
    ).fit()
    assert result.flops_share == 1.0


def test_in_another_thread(tmp_path):
    """Signals cannot be caught there; everything else works."""
    import threading

    found = []
    trainer = trainer_for(tmp_path)
    thread = threading.Thread(target=lambda: found.append(trainer.fit()))
    thread.start()
    thread.join()
    assert found and found[0].steps == 9
