"""A comparison: what it trains and in which order, what it keeps, matches, records and refuses."""

import dataclasses
import json

import pytest

from growthring.checkpoint import (
    CheckpointError,
    RunLock,
    read_checkpoint,
    read_json,
    write_json,
)
from growthring.compare import Comparison, Contender, parse_variant, results, write_outputs
from growthring.compare.contenders import MATCHED
from growthring.compare.manifest import Manifest, merge, read_manifest
from growthring.compare.match import matched_length
from growthring.compare.runner import Attempt
from growthring.errors import GrowthError, InputError
from growthring.planning.lengths import Length
from growthring.train import Silence, Trainer
from tests.compare.comparisons import Titles, compare, counted_clocks, manifest, snapshot
from tests.train.runs import small

WILD = Contender("wild", {"lr": 1e30})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two contenders, two seeds."""
    out = tmp_path_factory.mktemp("whole") / "out"
    titles = Titles()
    with pytest.MonkeyPatch.context() as patch:
        counted_clocks(patch)
        rows = compare(out, seeds=2, progress=titles).run()
    return out, rows, titles


def test_order_of_runs_and_of_rows(whole):
    _, rows, titles = whole
    names = ["fixed", "paired", *MATCHED, "vt"]
    assert [row.name for row in rows] == ["fixed", *MATCHED, "paired", "vt"]
    wanted = [f"{name}, seed {seed}" for seed in range(2) for name in names]
    shared = [row.name for row in rows if not row.runs[0].startswith(row.name)]
    assert titles.trained == [run for run in wanted if run.split(",")[0] not in shared]
    assert titles.said[0] == "run 1 of 14: fixed, seed 0"


def test_rows_are_what_the_runs_came_to(whole):
    out, rows, _ = whole
    fixed = [read_json(out / "fixed" / f"seed-{s}" / "result.json") for s in range(2)]
    assert rows[0].flops_share.mean == 1.0 and rows[0].flops_share.deviation is None
    for row in rows:
        found = [read_json(out / run / "result.json") for run in row.runs]
        assert row.state == "" and row.seeds == (0, 1)
        assert row.accuracy.mean == pytest.approx(sum(r["test_accuracy"] for r in found) / 2)
        half = abs(found[0]["test_accuracy"] - found[1]["test_accuracy"]) / 2
        assert row.accuracy.deviation == pytest.approx(half * 2**0.5)
        share = sum(r["flops"] for r in found) / sum(r["flops"] for r in fixed)
        assert row.flops_share.mean == pytest.approx(share)
        share = sum(r["seconds"] for r in found) / sum(r["seconds"] for r in fixed)
        assert row.seconds_share.mean == pytest.approx(share)
        assert row.memory.mean == 1e6 and row.memory_share.mean == 1.0
        assert row.values["test_accuracy"] == [r["test_accuracy"] for r in found]


def test_matched_rows_cost_what_the_matched_contender_costs(whole):
    out, rows, _ = whole
    by_name = {row.name: row for row in rows}
    decisions = read_manifest(out).decisions
    paired, matched = by_name["paired"], by_name["fixed-flops"]
    assert decisions["fixed-flops"].share == pytest.approx(paired.flops_share.mean)
    assert matched.length == decisions["fixed-flops"].length and matched.length.count < 3
    assert paired.flops_share.mean <= matched.flops_share.mean < paired.flops_share.mean + 1 / 3
    # 9 steps of 3 epochs; two growths count a second each.
    assert decisions["fixed-seconds"].share == pytest.approx((9 + 3) / (9 + 1))
    assert by_name["fixed-seconds"].length == Length(4, "epochs")
    config = read_json(out / "fixed-seconds" / "seed-1" / "config.json")
    assert config["settings"]["epochs"] == 4 and config["settings"]["fixed"]


@pytest.mark.parametrize(
    ("share", "epochs"), [(0.51, 16), (0.5, 15), (0.1, 3), (1e-9, 1), (1.0, 30), (1.21, 37)]
)
def test_epochs_are_rounded_up(share, epochs):
    assert matched_length(share, Length(30, "epochs")) == Length(epochs, "epochs")


def test_contenders_of_a_seed_see_the_same_data_in_the_same_order(whole):
    def order(name, seed):
        """Where the stream of batches is after three epochs: it depends on all that it has drawn."""
        state = read_checkpoint(whole[0] / name / f"seed-{seed}").state["train"]
        return [state["epoch"], state["generator"].tolist()]

    assert order("fixed", 0) == order("paired", 0) == order("vt", 0)
    assert order("fixed", 1) == order("paired", 1) != order("fixed", 0)


def test_finished_runs_are_kept_and_files_do_not_change(whole):
    out, rows, _ = whole
    before, results_before = snapshot(out), (out / "results.json").read_bytes()
    titles = Titles()
    again = compare(out, seeds=2, progress=titles)
    assert again.run() == rows and again.left == {}
    assert titles.said == ["14 of 14 runs are there already"]
    assert snapshot(out) == before and (out / "results.json").read_bytes() == results_before


def test_table_alone_makes_the_same_files(whole):
    out, rows, _ = whole
    names = ("results.json", "table.md", "accuracy-cost.svg", "report.html")
    before = [(out / name).read_bytes() for name in names]
    for name in names:
        (out / name).unlink()
    assert write_outputs(out) == rows
    assert [(out / name).read_bytes() for name in names] == before


def test_results_are_one_plain_object(whole):
    out, rows, _ = whole
    found = json.loads((out / "results.json").read_text())
    assert found == json.loads(json.dumps(results(rows, read_manifest(out))))
    assert found["seeds"] == 2 and found["match"] == "paired" and found["clock"] == "wall"
    assert found["rows"][5]["runs"] == ["paired/seed-0", "paired/seed-1"]


def test_the_page_has_table_plot_and_curves(whole):
    page = (whole[0] / "report.html").read_text()
    assert page.count("<svg xmlns") == 1 and page.count('class="chart"') == 5
    assert "fixed-seconds" in page and "rounded up" in page and "http-equiv" in page


@pytest.mark.slow
def test_more_contenders_and_seeds_are_added(tmp_path, monkeypatch):
    counted_clocks(monkeypatch)
    compare(tmp_path / "out", ["paired"]).run()
    before = snapshot(tmp_path / "out")
    decisions = read_manifest(tmp_path / "out").decisions
    titles = Titles()
    rows = compare(tmp_path / "out", ["vt"], 2, progress=titles).run()
    assert snapshot(tmp_path / "out").items() >= before.items()
    assert read_manifest(tmp_path / "out").decisions == decisions
    # What is matched takes part, so that the new seeds can be compared too.
    found = {row.name: (len(row.seeds), row.asked) for row in rows}
    names = ["fixed", *MATCHED, "vt", "paired"]
    assert found == dict.fromkeys(names, (2, 2)) and list(found) == names
    assert titles.trained[0] == "vt, seed 0"


@pytest.mark.slow
def test_a_failed_contender_does_not_end_the_comparison(tmp_path):
    out = tmp_path / "out"
    rows = {row.name: row for row in compare(out, ["paired", WILD, "vt"]).run()}
    assert rows["wild"].state.startswith("failed: the loss is") and rows["wild"].accuracy is None
    assert rows["vt"].state == "" and "failed: the loss is" in (out / "table.md").read_text()
    failed = out / "wild" / "seed-0" / "failed.json"
    assert read_json(failed)["error"] == "TrainingError"
    written = failed.stat().st_mtime_ns
    titles = Titles()
    compare(out, ["paired", WILD, "vt"], progress=titles).run()
    assert titles.trained == [] and failed.stat().st_mtime_ns == written
    again = compare(out, ["paired", WILD, "vt"], progress=titles, retry=True)
    assert {row.name: row for row in again.run()}["wild"].state.startswith("failed: the loss is")
    assert titles.trained == ["wild, seed 0"] and again.left == {}


@pytest.mark.slow
def test_a_failure_that_is_gone_is_finished_with_retry(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "resume", None)
        grow = "growthring.growing.grower.Grower.grow"
        patch.setattr(grow, lambda grower: (_ for _ in ()).throw(InputError("cannot grow this")))
        rows = compare(tmp_path, ["vt", "small"]).run()
    states = {row.name: row.state for row in rows}
    assert states["vt"] == "failed: cannot grow this" and states["small"] == ""
    assert states["fixed-flops"] == "no cost to match: 'vt' failed"
    rows = compare(tmp_path, ["vt", "small"], retry=True).run()
    assert {row.name: row.state for row in rows} == dict.fromkeys(
        ["fixed", *MATCHED, "vt", "small"], ""
    )


def test_a_full_disk_ends_it(tmp_path, monkeypatch):
    def full(trainer):
        raise CheckpointError("cannot write: no space left")

    monkeypatch.setattr(Trainer, "fit", full)
    with pytest.raises(CheckpointError, match="no space left"):
        compare(tmp_path).run()
    assert not list(tmp_path.glob("*/seed-0/failed.json"))


@pytest.mark.slow
def test_a_run_that_somebody_works_on_is_left_to_them(tmp_path):
    with RunLock(tmp_path / "vt" / "seed-0"):
        comparison = compare(tmp_path)
        rows = {row.name: row for row in comparison.run()}
    assert [(t.name, o) for t, o in comparison.left.items()] == [("vt", Attempt.ELSEWHERE)]
    assert rows["vt"].state == "not finished" and rows["fixed-seconds"].state == ""
    assert compare(tmp_path).run()[4].state == ""


@pytest.mark.slow
def test_what_waits_for_a_run_elsewhere_is_passed_over(tmp_path):
    with RunLock(tmp_path / ".locks" / "fixed-seed-0"):
        titles = Titles()
        comparison = compare(tmp_path, progress=titles)
        rows = {row.name: row for row in comparison.run()}
    assert titles.trained == ["paired, seed 0", "vt, seed 0"]
    assert list(comparison.left.values()) == [Attempt.ELSEWHERE, *[Attempt.WAITING] * 4]
    assert rows["fixed-flops"].state == "no cost to match: 'fixed' is not finished"
    assert rows["paired"].flops_share is None and rows["paired"].accuracy is not None
    assert all(row.state == "" for row in compare(tmp_path).run())


def test_a_matched_run_that_another_row_has_is_not_repeated(tmp_path, monkeypatch):
    counted_clocks(monkeypatch)
    # No growth costs a second here but the last stage's end: as many epochs as fixed.
    rows = {row.name: row for row in compare(tmp_path, ["small"], match="small").run()}
    decisions = read_manifest(tmp_path).decisions
    assert (
        decisions["fixed-seconds"].length.count == 3 and decisions["fixed-seconds"].runs == "fixed"
    )
    assert not (tmp_path / "fixed-seconds").exists()
    assert rows["fixed-seconds"].accuracy == rows["fixed"].accuracy
    assert rows["fixed-seconds"].runs == ("fixed/seed-0",)
    assert rows["fixed-seconds"].length == Length(3, "epochs")


def test_without_a_growing_contender_nothing_is_matched(tmp_path):
    rows = compare(tmp_path, ["small"]).run()
    assert [row.name for row in rows] == ["fixed", "small"]
    rows = compare(tmp_path, ["vt"]).run()  # and later there is one
    assert [row.name for row in rows] == ["fixed", *MATCHED, "vt", "small"]


def test_matched_by_default():
    def match(*names, **options):
        return compare("unused", names, **options)._manifest.match

    assert match("vt", "paired") == "paired" and match("small", "vt", "ra") == "vt"
    assert match("small") is None and match("vt", "paired", match="vt") == "vt"


def test_old_results_lack_some_costs(tmp_path, monkeypatch):
    counted_clocks(monkeypatch)
    compare(tmp_path, ["paired"], clock="cpu").run()
    for path in tmp_path.glob("*/seed-0/result.json"):
        kept = {k: v for k, v in read_json(path).items() if k in ("test_accuracy", "seconds")}
        write_json(path, kept)
    rows = {row.name: row for row in write_outputs(tmp_path)}
    assert rows["paired"].accuracy is not None and rows["paired"].seconds_share is None
    assert rows["paired"].flops_share is None and rows["paired"].memory is None
    line = (tmp_path / "table.md").read_text().splitlines()[5]
    assert line.count("| – ") == 2 and "memory" not in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"settings": ["lr=0.01"]}, "lr: 0.05 -> 0.01"),
        ({"clock": "cpu"}, "clock: 'wall' -> 'cpu'"),
        ({"match": "vt"}, "match: 'paired' -> 'vt'"),
    ],
)
def test_another_comparison_in_the_same_folder_is_refused(whole, options, says):
    before = snapshot(whole[0])
    with pytest.raises(InputError, match="other settings") as caught:
        compare(whole[0], seeds=2, **options).run()
    assert says in str(caught.value) and snapshot(whole[0]) == before


def test_a_variant_with_other_settings_is_refused(tmp_path):
    old = manifest(contenders={**manifest().contenders, "a": _entry({"lr": 1.0})})
    new = manifest(contenders={"a": _entry({"lr": 2.0})})
    with pytest.raises(InputError, match=r"a: \['lr=1.0'\] -> \['lr=2.0'\]"):
        merge(new, old)


def _entry(settings):
    return dataclasses.replace(manifest().contenders["paired"], settings=settings)


def test_a_run_with_other_settings_is_named(tmp_path):
    compare(tmp_path, ["paired"]).run()
    path = tmp_path / "paired" / "seed-0" / "config.json"
    config = read_json(path)
    config["settings"]["noise"] = 0.5
    write_json(path, config)
    with pytest.raises(InputError, match=r"paired/seed-0' holds a run.*noise: 0.5 -> 0.001"):
        compare(tmp_path, ["paired", "vt"]).run()
    assert not (tmp_path / "vt").exists()
    path.write_text("[]")
    with pytest.raises(InputError, match="holds a run with other settings"):
        compare(tmp_path, ["paired"]).run()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda out: compare(out, seeds=0), "seeds=0"),
        (lambda out: compare(out, seeds=True), "seeds=True"),
        (lambda out: compare(out, clock="sun"), "'sun' is not one of wall, cpu"),
        (lambda out: compare(out, match="gradmax"), "the contenders are paired, vt"),
        (lambda out: compare(out, match="fixed"), "the contenders are paired, vt"),
        (lambda out: compare(out, keep=0), "keep=0"),
        (lambda out: compare(out, settings=["fixed=true"]), "fixed=True"),
        (lambda out: compare(out, device="nonsense"), "nonsense"),
        (
            lambda out: compare(out, ["paired", _variant("method=paried")]),
            "'mine': method='paried'",
        ),
        (lambda out: compare(out, ["paired", _variant("stages=0")]), "contender 'mine'"),
        (lambda out: compare(out, ["paired", _variant("data=nope")]), "contender 'mine'"),
        (lambda out: compare(out, ["paired", _variant("optimizer_options.x=1")]), "'mine'"),
        (
            lambda out: compare(out, ["paired", _variant("side=4")]),
            "contender 'mine': 'digits' has images of shape (1, 4, 4)",
        ),
        (lambda out: compare(out, settings=["model_options.outputs=5"]), "has the label 9"),
        (lambda out: compare(out, ["paired", _variant("model_options.w=1")]), "contender 'mine'"),
    ],
)
def test_what_cannot_work_is_refused_before_any_training(make, says, tmp_path):
    with pytest.raises(GrowthError) as caught:
        make(tmp_path / "out").run()
    assert says in str(caught.value)
    assert not list((tmp_path / "out").glob("*/seed-*"))


def _variant(setting):
    return parse_variant(f"mine:{setting}")


def test_folders_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write into"):
        compare(tmp_path / "file").run()
    Trainer(small(), tmp_path / "run", progress=Silence()).fit()
    with pytest.raises(InputError, match="holds a run"):
        compare(tmp_path / "run").run()
    with pytest.raises(InputError, match="holds no comparison"):
        write_outputs(tmp_path)
    (tmp_path / "comparison.json").write_text('{"recipe": 3}')
    with pytest.raises(InputError, match="is not the manifest"):
        write_outputs(tmp_path)
    (tmp_path / "comparison.json").write_text('{"rec')
    with pytest.raises(CheckpointError, match="is not JSON"):
        Comparison(small(), ["paired"], 1, tmp_path)


def test_a_manifest_comes_back_as_it_was(whole):
    found = read_manifest(whole[0])
    assert isinstance(found, Manifest) and found.contenders["vt"].settings
    assert merge(found, found) == found
