"""All commands on a recipe that is so many steps long."""

import json

import pytest

from growthring.checkpoint import read_json
from tests.cli.commands import one_object, run

LENGTH = ["--set", "total_steps=12"]
RECIPE = ["--recipe", "demo", "--set", "num_train=96", "--set", "batch_size=32"]
RECIPE += ["--set", "model_options.width=8"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    from growthring.cli import main

    folder = tmp_path_factory.mktemp("steps")
    for name, more in (("grown", []), ("fixed", ["--fixed"])):
        arguments = ["train", *RECIPE, *LENGTH, *more, "--quiet", "--out", str(folder / name)]
        assert main(arguments) == 0
    return folder


def test_plan(capsys, tmp_path):
    status, out, _ = run(capsys, "plan", *RECIPE, *LENGTH)
    assert status == 0 and "(12 steps)" in out and "epochs" not in out
    status, out, _ = run(capsys, "plan", *RECIPE, *LENGTH, "--json")
    assert sum(one_object(out)["steps"]) == 12 and one_object(out)["epochs"] == []


def test_plan_is_drawn_over_steps(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    status, _, _ = run(capsys, "plan", *RECIPE, *LENGTH, "--plot", tmp_path / "a.svg")
    assert status == 0 and (tmp_path / "a.svg").stat().st_size > 1000


def test_train_report_export_and_eval(trained, capsys, tmp_path):
    result = read_json(trained / "grown" / "result.json")
    assert result["steps"] == 12 and result["epochs"] == 4.0
    status, out, _ = run(
        capsys, "report", trained / "grown", trained / "fixed", "--out", tmp_path / "a.html"
    )
    assert status == 0 and "demo, grown" in out and "-  " not in out.splitlines()[1]
    text = (tmp_path / "a.html").read_text()
    assert "over steps" in text and "over epochs" not in text and "2 stages in 12 steps" in text
    status, _, _ = run(capsys, "export", trained / "grown", tmp_path / "a.safetensors")
    assert status == 0
    status, out, _ = run(capsys, "eval", tmp_path / "a.safetensors", "--json")
    assert status == 0 and one_object(out)["test_accuracy"] == result["test_accuracy"]


def test_a_run_that_is_not_finished_says_at_which_step_it_is(trained, capsys, tmp_path):
    lines = (trained / "grown" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "config.json").write_bytes((trained / "grown" / "config.json").read_bytes())
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:3]))
    done = json.loads([line for line in lines[:3] if '"kind": "epoch"' in line][-1])["step"]
    status, out, _ = run(capsys, "report", tmp_path, "--out", tmp_path / "a.html")
    assert status == 0 and f"step {done} of 12" in out


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["epochs=3", "total_steps=9"], "both give the length of the run"),
        (["total_steps=1"], "there is no room for a growth in 1 step"),
        (["total_steps=2", "stages=4"], "2 steps do not reach for 4 stages"),
        (["total_steps=many"], "'total_steps' is int | None, not str"),
    ],
)
def test_refused(settings, says, capsys, tmp_path):
    more = [part for setting in settings for part in ("--set", setting)]
    status, _, err = run(capsys, "train", *RECIPE, *more, "--out", tmp_path / "run")
    assert status == 2 and says in err and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_advise(capsys):
    recipe = [*RECIPE, "--set", "total_steps=300", "--share", "100%", "--seeds", "1"]
    status, out, _ = run(capsys, "advise", *recipe, "--json")
    assert status == 0 and sum(one_object(out)["plan"]["steps"]) == 300


@pytest.mark.slow
def test_compare_and_resume(capsys, tmp_path):
    arguments = ["--methods", "paired", "--seeds", "1", "--quiet", "--out", tmp_path / "out"]
    status, out, _ = run(capsys, "compare", *RECIPE, *LENGTH, *arguments)
    assert status == 0 and out.splitlines()[0].split()[1] == "steps"
    folder = tmp_path / "out" / "fixed-flops" / "seed-0"
    status, out, _ = run(capsys, "train", "--resume", folder)
    assert status == 0
