"""Stages of data that grows: what the log says of them, what was forgotten, and means over seeds."""

import json

import pytest

from growthring.runs import format_table, summary_table
from growthring.runs.clocks import by_clock
from growthring.runs.configurations import Configuration, group_runs
from growthring.runs.forgetting import forgetting
from growthring.runs.records import StageRecord
from growthring.runs.run import read_run, read_runs
from growthring.runs.spread import Spread
from growthring.runs.stages import forgotten, mean_over_stages, stage_means, staged
from tests.runs.samples import EPOCHS, FULL_FLOPS, stage_records, write_run, write_stream


def ends(*parts):
    return [StageRecord(t, parts=values) for t, values in enumerate(parts)]


def runs_of(tmp_path, kind="plain", **options):
    return [
        read_run(write_stream(tmp_path / f"{kind}{seed}", kind, seed, **options))
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        # Classes of stage 0: 0.9 at best, 0.5 at the end; those of stage 1: 0.8 and 0.9. The last stage's are new.
        (ends((0.9,), (0.6, 0.8), (0.5, 0.9, 0.7)), (0.4 - 0.1) / 2),
        # Known best in the middle.
        (ends((0.5,), (0.7, 0.8), (0.6, 0.8, 0.7)), (0.1 + 0.0) / 2),
        # Stage 1 brought no classes.
        (ends((0.9,), (0.7, None), (0.6, None, 0.8)), 0.3),
        # Nothing is known of the classes of stage 0 at the end, or before it.
        (ends((0.9,), (0.7, 0.8), (None, 0.7, 0.8)), 0.1),
        (ends((None,), (None, 0.8), (0.6, 0.7, 0.8)), 0.1),
        (ends((0.9,), (0.7, 0.8), ()), None),
        # The record of stage 0 is lost.
        (ends((0.9,), (0.6, 0.8), (0.5, 0.9, 0.7))[1:], (0.1 - 0.1) / 2),
        (ends((0.9,)), None),
        ([], None),
    ],
)
def test_forgetting_by_hand(stages, expected):
    found = forgetting(stages)
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_run_has_the_records_that_it_wrote(tmp_path):
    run = read_run(write_stream(tmp_path / "a", "plain", 1))
    assert [record.as_line() for record in run.stages] == stage_records("plain", 1)
    assert not run.problems


def test_what_a_resumed_run_wrote_again_replaces_what_was_there(tmp_path):
    before, again = stage_records("plain", 0, 3), stage_records("osgd", 2)
    run = read_run(write_stream(tmp_path / "a", "plain", 0, stages=[*before, *again[1:]]))
    assert [record.stage for record in run.stages] == [0, 1, 2, 3]
    accuracies = [before[0]["accuracy"], *(record["accuracy"] for record in again[1:])]
    assert [record.accuracy for record in run.stages] == accuracies


@pytest.mark.parametrize("stage", [None, "1", -1, 1.5, True, [0]])
def test_a_line_without_a_stage_is_none(tmp_path, stage):
    lines = stage_records("plain", 1, 2)
    run = read_run(write_stream(tmp_path / "a", "plain", 1, [*lines, {**lines[0], "stage": stage}]))
    assert [record.stage for record in run.stages] == [0, 1]


def test_damaged_lines_and_values(tmp_path):
    odd = {"accuracy": "NaN", "classes": 1.5, "parts": [0.5, None, "x", True, 1e200], "flops": {}}
    run = write_stream(tmp_path / "a", "plain", 1, [*stage_records("plain", 1, 1, **odd)])
    with open(run / "metrics.jsonl", "a") as log:
        log.write('{"kind": "stage", "stage": 1, "acc\n' + json.dumps(stage_records("plain", 1)[2]))
    found = read_run(run)  # the last line has no end yet
    (record,) = found.stages
    assert (record.accuracy, record.classes, record.flops) == (None, None, None)
    assert record.parts == (0.5, None, None, None, None)
    assert found.problems == ["1 line is unreadable in metrics.jsonl."]


def test_means_and_deviations_over_seeds(tmp_path):
    means = stage_means(runs_of(tmp_path))
    assert [mean.stage for mean in means] == [0, 1, 2, 3]
    assert [mean.accuracy.mean for mean in means] == pytest.approx([0.90, 0.75, 0.66, 0.60])
    assert [mean.accuracy.deviation for mean in means] == pytest.approx(4 * [0.01])
    assert [part.mean for part in means[2].parts] == pytest.approx([0.50, 0.60, 0.84])
    assert [mean.classes for mean in means] == [20, 30, 40, 50]
    assert means[1].seconds.mean == 20.0 and means[1].flops.deviation is None


def test_seeds_that_went_less_far_or_had_other_classes(tmp_path):
    whole = read_run(write_stream(tmp_path / "a", "plain", 0))
    short = read_run(write_stream(tmp_path / "b", "plain", 2, stage_records("plain", 2, 2)))
    other = read_run(write_stream(tmp_path / "c", "plain", 1, stage_records("plain", 1, classes=7)))
    means = stage_means([whole, short])
    assert [mean.num_runs for mean in means] == [2, 2, 1, 1]
    assert means[1].accuracy.mean == pytest.approx(0.75) and means[2].accuracy.deviation is None
    assert {mean.classes for mean in stage_means([whole, other])} == {None}


def test_the_mean_over_stages_is_of_runs_that_have_all(tmp_path):
    runs = runs_of(tmp_path)
    found = mean_over_stages(runs)
    assert found.mean == pytest.approx((0.90 + 0.75 + 0.66 + 0.60) / 4)
    assert found.deviation == pytest.approx(0.01)
    for stages in ([0, 1], [0, 2, 3]):
        lines = [stage_records("plain", 2)[t] for t in stages]
        part = read_run(write_stream(tmp_path / f"part{stages[-1]}", "plain", 2, lines))
        assert mean_over_stages([runs[0], part]) == mean_over_stages(runs[:1])
    assert mean_over_stages([]) is None


def test_what_was_forgotten_is_what_the_result_says_else_what_the_log_does(tmp_path):
    # By the records: (0.90 - 0.40 + 0.80 - 0.50 + 0.84 - 0.60) / 3, for every seed alike.
    assert forgotten(runs_of(tmp_path)).mean == pytest.approx((0.50 + 0.30 + 0.24) / 3)
    said = write_stream(tmp_path / "said", "plain", 0, scores={"test_forgetting": 0.1})
    assert forgotten([read_run(said)]) == Spread(0.1)
    lines = stage_records("plain", 0, 2)
    going = read_run(write_stream(tmp_path / "going", "plain", 0, lines, num_epochs=9))
    assert forgotten([going]).mean == pytest.approx(0.90 - 0.70)
    assert forgotten([*runs_of(tmp_path / "more"), going]).mean == pytest.approx(1.04 / 3)
    assert forgotten([]) is None


def test_of_runs_that_are_not_all_finished_the_finished_ones_count(tmp_path):
    finished = write_stream(tmp_path / "a", "plain", 0)
    going = write_stream(tmp_path / "b", "plain", 1, stage_records("plain", 1, 2), num_epochs=9)
    none = write_run(tmp_path / "c", True)
    (one,) = staged(group_runs(read_runs([finished, going, none])))
    assert [run.path for run in one.runs] == [finished]
    (one,) = staged(group_runs(read_runs([going, none])))
    assert [run.path for run in one.runs] == [going] and len(one.means) == 2
    bare = write_stream(tmp_path / "d", "plain", 2, stages=[])  # finished, and its log lost them
    (one,) = staged(group_runs(read_runs([going, bare])))
    assert [run.path for run in one.runs] == [going]


def test_shares_are_those_that_the_epochs_count(tmp_path):
    (one,) = staged(group_runs([read_run(write_stream(tmp_path / "a", "plain", 1))]))
    assert one.full_flops == pytest.approx(3 * 5000 * FULL_FLOPS * sum(EPOCHS))
    shares = [one.flops_share(mean) for mean in one.means]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1.0])
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["kind"] == "stage"]
    (tmp_path / "a" / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    (one,) = staged([Configuration("alone", (read_run(tmp_path / "a"),))])
    assert one.flops_share(one.means[0]) is None
    fixed = read_run(write_run(tmp_path / "fixed", True))
    (one,) = staged(group_runs([read_run(tmp_path / "a"), fixed]))
    assert one.flops_share(one.means[0]) == pytest.approx(0.25)


def test_the_clock_of_the_processor(tmp_path):
    run = read_run(write_stream(tmp_path / "a", "plain", 1))
    assert [record.seconds for record in by_clock(run, "cpu").stages] == [8.0, 16.0, 24.0, 32.0]


def test_the_table_of_runs_has_what_was_forgotten(tmp_path):
    runs = [
        write_stream(tmp_path / f"{seed}", "plain", seed, scores={"test_forgetting": lost})
        for seed, lost in enumerate((0.29, 0.30, 0.31))
    ]
    grown, fixed = summary_table([*runs, write_run(tmp_path / "fixed", True)])
    assert grown.metric.name == "accuracy" and fixed.forgetting is None
    assert grown.forgetting.mean == pytest.approx(0.30)
    assert grown.forgetting.deviation == pytest.approx(0.01)
    head, first, second = format_table([grown, fixed]).splitlines()
    assert head.split()[1:4] == ["test", "accuracy", "forgetting"] and "30.00 ± 1.00 %" in first
    assert len(head) == len(first) == len(second)
    assert "forgetting" not in format_table([fixed])
