"""Stages are compiled where that is measured to pay, and a resumed run compiles the same ones."""

import contextlib
import json

import pytest
import torch

import growthring as gr
from growthring.checkpoint import CheckpointError, load_weights, read_json
from growthring.errors import InputError
from growthring.runs import RunFolder
from growthring.train import Interrupted, Silence, Trainer, parse_settings
from growthring.train.choices import (
    Choice,
    TwinTrial,
    choices_of,
    choose,
    compiled_steps,
    mode_of,
)
from growthring.train.compilation import Compilation
from tests.train.runs import Killer, normed, small

CPU = torch.device("cpu")


class Scripted:
    """A trial whose seconds are given: of a plain pass, of compiling, and the compiled share of a pass."""

    def __init__(self, plain, seconds=40.0, ratio=0.8):
        self._plain, self._seconds, self._ratio = plain, seconds, ratio
        self.tried = []

    def plain(self, stage):
        return self._plain[stage]

    def compiled(self, stage):
        self.tried.append(stage)
        return self._seconds, self._plain[stage], self._plain[stage] * self._ratio


def test_a_stage_is_compiled_where_its_steps_repay_it():
    trial = Scripted({0: 0.1, 1: 0.1, 2: 0.2})
    found = choose({0: 100, 1: 3000, 2: 3000}, trial)
    assert [c.is_compiled for c in found] == [False, True, True]
    assert trial.tried == [2, 1], "where most is to be gained comes first"
    assert str(found[1]) == (
        "stage 1 is compiled: a pass takes 0.80 of a plain one, its 3000 steps save 60 s"
    )
    assert str(found[0]) == (
        "stage 0 is not compiled: by what others showed, its 100 steps would save 2 s and it would take 40 s"
    )


def test_short_runs_try_nothing():
    trial = Scripted({0: 0.01, 1: 0.02})
    found = choose({0: 500, 1: 500}, trial)
    assert not trial.tried and not any(c.is_compiled or c.seconds for c in found)
    assert found[0].reason == (
        "at the usual gain, its 500 steps would save 1 s and it would take 45 s"
    )


def test_one_trial_that_gains_nothing_is_the_last():
    trial = Scripted({0: 0.1, 1: 0.1, 2: 0.1}, ratio=1.05)
    found = choose(dict.fromkeys(range(3), 10_000), trial)
    assert trial.tried == [0] and not any(c.is_compiled for c in found)
    assert found[0].seconds == 40 and found[0].ratio == pytest.approx(1.05)


def test_what_cannot_be_compiled_is_not():
    class Failing(Scripted):
        def compiled(self, stage):
            raise RuntimeError("no compiler\nmore of it")

    found = choose({0: 10_000, 1: 10_000}, Failing({0: 0.1, 1: 0.1}))
    assert {c.reason for c in found} == {"torch.compile fails: RuntimeError: no compiler"}
    assert not any(c.is_compiled for c in found)

    class Broken(Scripted):
        def plain(self, stage):
            raise RuntimeError("no shapes")

    (found,) = choose({2: 10_000}, Broken({}))
    assert (
        str(found)
        == "stage 2 is not compiled: a pass of it cannot be measured: RuntimeError: no shapes"
    )


def test_steps_in_which_norms_fade_in_are_not_compiled():
    assert compiled_steps([10, 20, 30], 1, 0.5, is_fading=True) == {1: 10, 2: 15}
    assert compiled_steps([10, 20, 30], 0, 0.5, is_fading=False) == {0: 10, 1: 20, 2: 30}


def test_a_trial_on_throwaway_models_leaves_everything():
    torch.manual_seed(0)
    plan = gr.plan(normed(), torch.randn(2, 1, 8, 8), stages=2, total_steps=30, batch_size=4)
    before, state = (
        {n: t.clone() for n, t in plan.model.state_dict().items()},
        torch.get_rng_state(),
    )
    trial = TwinTrial(plan, CPU, contextlib.nullcontext, "eager")
    assert trial.plain(0) > 0
    seconds, plain, compiled = trial.compiled(1)
    assert seconds > 0 and plain > 0 and compiled > 0
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(t, before[n]) for n, t in plan.model.state_dict().items())
    found = choose({0: 10, 1: 10}, trial)
    assert not any(c.is_compiled for c in found)


def test_modes():
    assert [mode_of(m) for m in (True, False, "auto", "always", "never")] == [
        "always", "never", "auto", "always", "never",
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"compile='maybe': choose 'auto' \(the stages where"):
        Trainer(small("compile=maybe"), "unused", progress=Silence())
    assert parse_settings(["compile=auto", "seed=1"]) == {"compile": "auto", "seed": 1}
    assert small("compile=true").compile is True and small().compile is False


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ("all", "no list of choices"),
        ([{"stage": 0}], "a choice of what is compiled is"),
        ([{**Choice(0, True, "").as_dict(), "is_compiled": 1}], "a choice of what is compiled is"),
        ([Choice(3, True, "").as_dict()], r"stages \[3\] are chosen .* out of 2"),
        ([Choice(0, True, "").as_dict()] * 2, r"stages \[0, 0\] are chosen"),
    ],
)
def test_choices_that_are_none_are_refused(stored, words):
    with pytest.raises(ValueError, match=words):
        choices_of(stored, 2)


# Runs. With the backend "eager" a compiled step has the very bits of a plain one, and needs no compiler.


def scripted(monkeypatch, ratio=0.5):
    """Runs whose trials find that stages 1 and 2 pay; returns the stages that were tried."""
    tried = []

    def choices(steps, trial):
        tried.append(sorted(steps))
        given = Scripted({0: 0.001, 1: 10.0, 2: 10.0}, ratio=ratio)
        return choose(dict.fromkeys(steps, 100), given)

    monkeypatch.setattr(Compilation, "backend", "eager")
    monkeypatch.setattr("growthring.train.compilation.choose", choices)
    return tried


def compiled_stages(monkeypatch):
    """The widths of the models that are compiled as stages come."""
    seen = []
    from growthring.train import compilation

    class Seen(compilation.CompiledStage):
        def __init__(self, model, *args):
            seen.append(sum(p.numel() for p in model.parameters()))
            super().__init__(model, *args)

    monkeypatch.setattr(compilation, "CompiledStage", Seen)
    return seen


def test_a_run_compiles_what_was_chosen_and_says_what_it_took(tmp_path, monkeypatch):
    said, tried = [], scripted(monkeypatch)
    seen = compiled_stages(monkeypatch)
    progress = Silence()
    monkeypatch.setattr(progress, "say", said.append)
    trainer = Trainer(
        small(), tmp_path / "a", progress=progress, compile="auto", checkpoint_steps=1
    )
    result = trainer.fit()
    assert tried == [[0, 1, 2]] and len(seen) == 2
    assert any(text.startswith("stage 1 is compiled: a pass takes 0.50") for text in said)
    assert any(text.startswith("stage 0 is not compiled: by what others") for text in said)
    assert 0 < result.compile_seconds <= result.seconds
    assert result.notes[0].endswith("seconds of training were spent on torch.compile")
    assert len(result.notes) == 4 and "compiling" in str(result)
    assert read_json(tmp_path / "a" / "result.json")["compile_seconds"] == result.compile_seconds
    assert read_json(tmp_path / "a" / "config.json")["settings"]["compile"] == "auto"
    plain = Trainer(small(), tmp_path / "b", progress=Silence()).fit()
    first, second = (load_weights(tmp_path / n / "model.safetensors") for n in "ab")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert plain.compile_seconds == 0 and plain.notes == ()


@pytest.mark.parametrize("at", [1, 5, 8])
def test_a_resumed_run_compiles_what_the_run_had_chosen(at, tmp_path, monkeypatch):
    tried = scripted(monkeypatch)
    recipe = small("compile=auto", model=normed)
    whole = Trainer(recipe, tmp_path / "whole", progress=Silence())
    whole.fit()

    def stop():
        raise KeyboardInterrupt

    stopped = Trainer(recipe, tmp_path / "run", progress=Killer(at, stop), checkpoint_steps=1)
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        stopped.fit()
    assert len(tried) == 2
    resumed = Trainer(recipe, tmp_path / "run", progress=Silence())
    resumed.resume()
    assert resumed.compilation.choices == stopped.compilation.choices
    resumed.fit()
    assert len(tried) == 2, "nothing is tried again"
    first, second = (load_weights(tmp_path / n / "model.safetensors") for n in ("whole", "run"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_checkpoint_with_choices_of_another_plan_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("growthring.train.compilation.choose", lambda *given: [Choice(7, True, "")])
    recipe = small("compile=auto")
    Trainer(recipe, tmp_path / "run", progress=Silence()).fit()
    resumed = Trainer(recipe, tmp_path / "run", progress=Silence())
    with pytest.raises(CheckpointError, match=r"stages \[7\] are chosen"):
        resumed.resume()


def test_always_compiles_every_stage(tmp_path, monkeypatch):
    monkeypatch.setattr(Compilation, "backend", "eager")
    seen = compiled_stages(monkeypatch)
    trainer = Trainer(small("compile=true"), tmp_path / "run", progress=Silence())
    result = trainer.fit()
    assert len(seen) == 3 and result.compile_seconds > 0
    assert [c.is_compiled for c in trainer.compilation.choices] == [True] * 3
    stored = RunFolder(tmp_path / "run").result_file.read_text()
    assert json.loads(stored)["compile_seconds"] > 0


def test_without_a_cache_a_trial_would_be_lost(tmp_path, monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(Compilation, "backend", "eager")
    with config.patch({"force_disable_caches": True}):
        trainer = Trainer(small("compile=auto"), tmp_path / "run", progress=Silence())
        trainer.fit()
    assert not any(c.is_compiled for c in trainer.compilation.choices)
    assert "inductor keeps nothing on the disk" in trainer.compilation.choices[0].reason
