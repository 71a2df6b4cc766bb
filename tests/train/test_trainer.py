"""The trainer's settings: seeds, the fixed-size baseline, rates, clipping, precision, failures."""

import io
import math

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.checkpoint import list_checkpoints, load_weights, read_json
from growthring.errors import InputError
from growthring.train import Interrupted, Silence, Trainer, TrainingError
from growthring.train.progress import Progress, Status
from growthring.train.setup import learning_rate, make_model, make_streams
from tests.train.nets import normed
from tests.train.runs import Killer, assert_same_run, metrics, resnet, small


def fit(recipe, folder, **options):
    result = Trainer(recipe, folder, progress=Silence(), **options).fit()
    return result, load_weights(folder / "model.safetensors")


def same(a, b):
    return set(a) == set(b) and all(a[name].equal(b[name]) for name in a)


def test_a_run_keeps_what_it_is_and_what_it_came_to(tmp_path):
    recipe = resnet()
    result, weights = fit(recipe, tmp_path)
    model = make_model(recipe, torch.Generator().manual_seed(0))
    model.load_state_dict(weights, strict=True)
    assert result.parameters == sum(p.numel() for p in model.parameters())
    assert (result.epochs, result.steps) == (3, 9) and 0 < result.flops_share < 1
    config = read_json(tmp_path / "config.json")
    assert config["settings"] == recipe.as_dict() and config["plan"]["epochs"] == [1, 1, 1]
    assert result.flops_share == pytest.approx(config["plan"]["flops_share"])
    assert read_json(tmp_path / "result.json")["test_accuracy"] == result.test_accuracy
    lines = metrics(tmp_path)
    assert [line["kind"] for line in lines] == ["epoch", "growth", "epoch", "growth", "epoch"]
    assert lines[-1]["test_accuracy"] == result.test_accuracy
    assert all(line["change"] < 1e-2 for line in lines if line["kind"] == "growth")
    assert list_checkpoints(tmp_path)[-1][0] == 9 and len(list_checkpoints(tmp_path)) == 3


@pytest.mark.parametrize("model", [None, normed])
@pytest.mark.each(2)
def test_one_seed_one_run(model, tmp_path):
    settings = {} if model is None else {"model": model}
    options = ["model_options.dropout=0.3"]
    _, first = fit(small(*options, **settings), tmp_path / "first")
    torch.manual_seed(99)
    fit(small(*options, **settings), tmp_path / "second")
    assert_same_run(tmp_path / "first", tmp_path / "second")
    _, other = fit(small(*options, "seed=1", **settings), tmp_path / "other")
    assert not any(first[name].equal(other[name]) for name in first if "norm" not in name)


@pytest.mark.slow
def test_a_run_leaves_torchs_default_settings_alone(tmp_path):
    before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    fit(small(), tmp_path)
    assert before == (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())


def test_fixed_size_is_a_plain_torch_loop(tmp_path):
    recipe = resnet(
        "fixed=true", "lr_schedule=cosine", "warmup_steps=2", "label_smoothing=0.1", "clip_norm=1.0"
    )
    result, weights = fit(recipe, tmp_path)
    generator = torch.Generator().manual_seed(0)
    model = make_model(recipe, generator)
    train = make_streams(recipe, None, generator, torch.device("cpu")).train
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=5e-4)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    torch.manual_seed(0)
    step = 0
    for _ in range(3):
        for inputs, targets in train:
            rise = min(1.0, (step + 1) / 2)
            rate = 0.05 * rise * 0.5 * (1 + math.cos(math.pi * step / 9))
            optimizer.param_groups[0]["lr"] = round(rate, 15)
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
    assert same(weights, model.state_dict())
    assert result.flops_share == 1.0 and step == result.steps


def test_grown_without_growth_is_fixed_size(tmp_path):
    options = ["optimizer_options.output_rate=false"]  # the output layer's own rate aside
    _, grown = fit(small(*options, "stages=1"), tmp_path / "grown")
    _, fixed = fit(small(*options, "fixed=true"), tmp_path / "fixed")
    assert same(grown, fixed)


@pytest.mark.each(8)
@pytest.mark.parametrize(
    "setting",
    [
        "clip_norm=0.1",
        "label_smoothing=0.2",
        "warmup_steps=5",
        "precision=bfloat16",
        "lr_schedule=constant",
        "lr_decay=0.5",
        "optimizer_options.ring_schedule=own",
        "variance_transfer=constraint",
        "noise=0.01",
    ],
)
def test_settings_do_something(setting, plainly, tmp_path):
    result, weights = fit(small(setting), tmp_path)
    assert list(weights) == list(plainly) and not same(weights, plainly)
    assert math.isfinite(result.test_loss)
    assert all(w.isfinite().all() and w.dtype == torch.float32 for w in weights.values())


@pytest.fixture(scope="module")
def plainly(tmp_path_factory):
    return fit(small(), tmp_path_factory.mktemp("plain") / "run")[1]


def test_rates_are_as_planned(tmp_path):
    fit(small("lr_schedule=cosine", "warmup_steps=4", "lr=1e-3"), tmp_path / "cosine")
    rates = [line["lr"] for line in metrics(tmp_path / "cosine") if line["kind"] == "epoch"]
    expected = [
        1e-3 * min(1, (s + 1) / 4) * 0.5 * (1 + math.cos(math.pi * s / 9)) for s in (2, 5, 8)
    ]
    assert rates == pytest.approx(expected)
    recipe = small("lr_schedule=constant", "warmup_steps=2")
    assert [learning_rate(recipe, s, 9) for s in (0, 1, 2, 8)] == [0.025, 0.05, 0.05, 0.05]


@pytest.mark.slow
def test_batches_grow_and_the_rate_with_them(tmp_path):
    options = ["batch_growth=0.5", "batch_size=48", "lr_schedule=constant", "lr=0.01"]
    fit(small(*options, "batch_rate=linear"), tmp_path / "linear")
    lines = [line for line in metrics(tmp_path / "linear") if line["kind"] == "epoch"]
    sizes = [line["batch_size"] for line in lines]
    assert sizes == [108, 72, 48]  # thin networks take larger batches; 96 examples fill the first
    shares = [line["lr"] / line["batch_size"] for line in lines]
    assert shares == pytest.approx([shares[0]] * 3)
    fit(small(*options), tmp_path / "none")
    rates = {line["lr"] for line in metrics(tmp_path / "none") if line["kind"] == "epoch"}
    assert rates == {0.01}


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "avagrad", "lars"])
@pytest.mark.each(4)
def test_optimizers(optimizer, tmp_path):
    recipe = small(f"optimizer={optimizer}", "lr=0.01", "optimizer_options={}")
    result, _ = fit(recipe, tmp_path)
    assert math.isfinite(result.test_loss)


def test_a_loss_that_is_not_finite_names_step_stage_and_norms(tmp_path):
    recipe = small("lr=1e9", "stages=2", "epochs=4")
    with pytest.raises(TrainingError) as caught:
        fit(recipe, tmp_path)
    text = str(caught.value)
    assert not isinstance(caught.value, Interrupted)
    assert "step 1" in text or "step 2" in text
    assert "stage 0" in text and "norms" in text and str(tmp_path) in text
    trainer = Trainer(recipe, tmp_path, progress=Silence())
    trainer.resume()
    assert trainer.totals.step == 0
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    with pytest.raises(TrainingError) as again:
        trainer.fit()
    assert str(again.value) == text


def test_a_checkpoint_from_before_the_loss_was_not_finite_has_finite_weights(tmp_path):
    """A loss may be finite while the step that follows is not."""

    def explode(model):
        for p in model.parameters():
            p.register_hook(lambda g: g * math.inf if trainer.totals.step == 4 else g)
        return model

    trainer = Trainer(
        small("fixed=true"),
        tmp_path,
        model=lambda: explode(small().model()),
        checkpoint_steps=1,
        progress=Silence(),
    )
    with pytest.raises(TrainingError, match="step 5"):
        trainer.fit()
    trainer.resume()
    assert all(p.isfinite().all() for p in trainer.model.parameters())


@pytest.mark.parametrize(
    "setting",
    [
        "precision=float16",
        "lr_schedule=steps",
        "lr_decay=0",
        "optimizer=none",
        "variance_transfer=much",
    ],
)
@pytest.mark.each(4)
def test_a_setting_that_means_nothing_is_refused_before_the_folder_is_taken(setting, tmp_path):
    with pytest.raises(InputError, match=setting.split("=")[0]):
        fit(small(setting), tmp_path / "run")
    fit(small(), tmp_path / "run")


@pytest.mark.parametrize("setting", ["warmup_steps=-3", "clip_norm=-1.0", "lr=-1.0"])
def test_negative_settings_are_refused(setting, tmp_path):
    with pytest.raises(InputError, match=setting.split("=")[0]):
        fit(small(setting), tmp_path)


@pytest.mark.slow
def test_checkpoints_by_steps_minutes_and_number(tmp_path):
    fit(small(), tmp_path / "steps", checkpoint_steps=2, keep=20)
    assert [s for s, _ in list_checkpoints(tmp_path / "steps")] == [0, 2, 3, 4, 6, 8, 9]
    fit(small(), tmp_path / "time", checkpoint_minutes=0.0, keep=20)
    assert [s for s, _ in list_checkpoints(tmp_path / "time")] == list(range(10))


def test_few_checkpoints_are_kept_or_it_is_refused_at_once(tmp_path):
    with pytest.raises(InputError, match="keep=0"):
        fit(small(), tmp_path / "run", keep=0)
    fit(small(), tmp_path / "run", keep=1)  # the folder was not taken
    assert len(list_checkpoints(tmp_path / "run")) == 1


@pytest.mark.slow
def test_rates_of_rings_are_logged(tmp_path):
    fit(small("optimizer_options.rate_adaptation=norm"), tmp_path, log_rates=4)
    lines = [line for line in metrics(tmp_path) if line["kind"] == "rates"]
    assert [line["step"] for line in lines] == [4, 8]
    assert lines[1]["factors"] and all(len(f) == 3 for f in lines[1]["factors"].values())
    fit(small(), tmp_path / "one rate", log_rates=4)
    assert not any(line["kind"] == "rates" for line in metrics(tmp_path / "one rate"))


@pytest.mark.slow
@pytest.mark.parametrize("fixed", ["true", "false"])
def test_compiled(fixed, tmp_path):
    recipe = small("compile=true", f"fixed={fixed}", model=normed)
    result, weights = fit(recipe, tmp_path / "whole")
    assert math.isfinite(result.test_loss)
    with pytest.raises(KeyboardInterrupt):
        Trainer(recipe, tmp_path / "run", checkpoint_steps=1, progress=Killer(5, _break)).fit()
    trainer = Trainer(recipe, tmp_path / "run", progress=Silence())
    trainer.resume()
    trainer.fit()
    assert same(weights, load_weights(tmp_path / "run" / "model.safetensors"))


def _break():
    raise KeyboardInterrupt


def test_the_library_offers_it():
    assert gr.train.Trainer is Trainer


def test_what_takes_time_to_work_out_is_asked_for_where_it_is_shown():
    asked = []

    def ask():
        asked.append(1)
        return "width 4", 1.5, 0.25

    status, stream = Status(0, 2, 1, 3, 5, 10, 2.0, ask), io.StringIO()
    Progress(stream, is_live=False).step(status)
    Silence().step(status)
    assert not asked and not stream.getvalue()
    Progress(stream, is_live=True).step(status)
    shown = stream.getvalue()
    assert "epoch 2/3  width 4  loss 1.500  25.0% of fixed-size FLOPs  0:02 < 0:02" in shown
    assert len(asked) == 1
