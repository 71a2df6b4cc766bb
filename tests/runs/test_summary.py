import json
import math

import pytest

from growthring.runs import format_table, summary_table
from tests.runs.samples import metrics, plan, write_run


def test_shares_are_relative_to_the_fixed_size_run(tmp_path):
    runs = [write_run(tmp_path / "grown"), write_run(tmp_path / "fixed", True)]
    grown, fixed = summary_table(runs)
    assert (grown.run, fixed.run) == ("demo, grown", "demo, fixed-size")
    assert grown.flops_share.mean == pytest.approx(plan(fixed=False)["flops_share"])
    seconds = [json.loads((run / "result.json").read_text())["seconds"] for run in runs]
    assert grown.seconds_share.mean == pytest.approx(seconds[0] / seconds[1])
    assert grown.flops_basis == grown.seconds_basis == "fixed"
    assert fixed.flops_share.mean == fixed.seconds_share.mean == 1.0
    assert grown.state == fixed.state == ""


def test_without_a_fixed_size_run_the_run_or_its_plan_tells(tmp_path):
    counted = write_run(tmp_path / "counted")
    records = [{k: v for k, v in r.items() if "flops" not in k} for r in metrics(False, 0)]
    planned = write_run(tmp_path / "planned", name="other", records=records)
    config = json.loads((planned / "config.json").read_text())
    config["plan"] |= {"seconds_share": 0.7}
    (planned / "config.json").write_text(json.dumps(config))
    rows = summary_table([counted, planned])
    assert [row.flops_basis for row in rows] == ["counted", "planned"]
    assert [row.seconds_basis for row in rows] == ["", "planned"]
    text = format_table(rows)
    assert "70.0 %*" in text and text.endswith("* planned, not measured")


def test_seeds_share_a_row(tmp_path):
    runs = [
        write_run(tmp_path / f"{kind}{seed}", kind, seed) for kind in (0, 1) for seed in range(3)
    ]
    rows = summary_table(runs)
    assert len(rows) == 2
    values = [json.loads((run / "result.json").read_text())["seconds"] for run in runs[:3]]
    mean = sum(values) / 3
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
    assert rows[0].seconds.mean == pytest.approx(mean)
    assert rows[0].seconds.deviation == pytest.approx(deviation)
    assert rows[0].flops_share.deviation is None  # counted: the same for all seeds
    assert "±" in format_table(rows)


def test_only_finished_seeds_count(tmp_path):
    runs = [write_run(tmp_path / "a", seed=0), write_run(tmp_path / "b", seed=1, num_epochs=3)]
    (row,) = summary_table(runs)
    assert row.quality.mean > 0.9 and row.quality.deviation is None
    assert row.state == "1 of 2 runs finished"


def test_an_unfinished_fixed_size_run_is_no_reference(tmp_path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", True, num_epochs=3)]
    grown, fixed = summary_table(runs)
    assert grown.flops_basis == "counted" and grown.seconds_share is None
    assert fixed.state == "epoch 3 of 60"


def test_of_several_fixed_size_runs_the_most_alike_is_compared_with(tmp_path):
    runs = [write_run(tmp_path / "a", lr=0.3)]
    runs += [write_run(tmp_path / f"f{lr}", True, lr=lr) for lr in (0.1, 0.3)]
    result = json.loads((runs[1] / "result.json").read_text())
    (runs[1] / "result.json").write_text(json.dumps(result | {"seconds": 1.0}))
    assert summary_table(runs)[0].seconds_share.mean < 1


def test_equal_names_are_told_apart(tmp_path):
    runs = [write_run(tmp_path / "a", lr=0.1), write_run(tmp_path / "b", lr=0.2)]
    assert [r.run for r in summary_table(runs)] == ["demo, grown, lr=0.1", "demo, grown, lr=0.2"]
    for folder in ("x/same", "y/same"):
        (tmp_path / folder).mkdir(parents=True)
    names = [r.run for r in summary_table([tmp_path / "x/same", tmp_path / "y/same"])]
    assert len(set(names)) == 2


def test_a_run_given_twice_counts_once(tmp_path):
    run = write_run(tmp_path / "a")
    assert len(summary_table([run, run])[0].directories) == 1


def test_losses_stand_in_for_missing_accuracies(tmp_path):
    records = [r | {"test_accuracy": None} for r in metrics(False, 0)]
    text = format_table(summary_table([write_run(tmp_path / "a", records=records)]))
    assert "test loss" in text and "accuracy" not in text


def test_table_of_nothing():
    assert format_table([]) == "no runs"
    assert format_table(summary_table(["/no/such/run"])).splitlines()[1].endswith("no metrics")


def test_table_keeps_its_columns_whatever_the_names(tmp_path):
    runs = [
        write_run(tmp_path / "a", name="\x1b[31mred\nline"),
        write_run(tmp_path / "b", name="n" * 500),
    ]
    lines = format_table(summary_table(runs)).splitlines()
    assert len(lines) == 3 and "\x1b" not in lines[1]
    assert len({len(line) for line in lines}) == 1 and len(lines[0]) < 110
