"""The table: its text, what is left out, and what it says about the numbers."""

import statistics

import pytest

from growthring.compare import format_table, notes
from growthring.compare.manifest import Decision
from growthring.compare.standings import spread
from growthring.compare.table import markdown
from growthring.planning.lengths import Length
from growthring.runs import Spread
from growthring.runs.metrics import ACCURACY, headline_of
from tests.compare.comparisons import manifest, row

ROWS = [
    row("fixed", 0.9812, 0.0011, 1.0, 1.0, memory=Spread(50.2e6), memory_share=Spread(1.0)),
    row("paired", 0.98, 0.002, 0.529, 0.61, memory=Spread(40e6), memory_share=Spread(0.797)),
    row("firefly", 0.97, None, 0.56, None, seeds=(0,), search_share=Spread(0.031)),
]


def test_deviation_is_the_sample_one():
    values = [0.97, 0.98, 0.96, 0.99]
    found = spread(values)
    mean = sum(values) / 4
    assert found.mean == pytest.approx(mean)
    expected = (sum((v - mean) ** 2 for v in values) / 3) ** 0.5
    assert found.deviation == pytest.approx(expected) == pytest.approx(statistics.stdev(values))
    assert spread([0.5]).deviation is None and spread([]) is None


def test_text():
    assert format_table(ROWS) == (
        "contender  epochs    accuracy %  n  FLOPs %    seconds %  memory MB  of fixed  search %\n"
        "fixed          30  98.12 ± 0.11  3    100.0  100.0 ± 2.0       50.2     1.00×         –\n"
        "paired         30  98.00 ± 0.20  3     52.9   61.0 ± 2.0       40.0     0.80×         –\n"
        "firefly        30         97.00  1     56.0            –          –         –       3.1"
    )


def test_columns_without_values_are_left_out_and_states_are_shown():
    head, line = format_table([row(state="failed: the loss is nan\nat step 3")], "cpu").splitlines()
    assert " ".join(head.split()) == "contender epochs accuracy % n FLOPs % CPU seconds % state"
    assert line.endswith("failed: the loss is nan at step 3")
    assert "…" in format_table([row(state="failed: " + 200 * "x")])


def test_loss_stands_in_for_an_accuracy_that_nobody_has():
    none = headline_of([((ACCURACY,), {"test_loss": 0.1})])
    assert "test loss" in format_table([row(accuracy=None, metric=none)])
    one = headline_of([((ACCURACY,), {"test_loss": 0.1}), ((), {"test_accuracy": 0.9})])
    assert "test loss" not in format_table([row(accuracy=None, metric=one), row("b", metric=one)])


def test_markdown_is_one_table_with_notes():
    text = markdown([row(state="failed: a|b")], manifest())
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 3 and lines[1].startswith("| --- | ---: |")
    assert r"a\|b" in lines[2] and len({line.replace(r"\|", "").count("|") for line in lines}) == 1
    assert "\n- ± is the sample standard deviation" in text


def test_notes_tell_how_the_epochs_were_matched():
    decisions = {
        "fixed-flops": Decision(Length(16, "epochs"), 0.529, "paired", "fixed-flops"),
        "fixed-seconds": Decision(Length(19, "epochs"), 0.61, "paired", "fixed-seconds"),
    }
    found = "\n".join(notes(ROWS, manifest(decisions=decisions, clock="cpu")))
    assert "a schedule of 16 epochs (fixed: 30)" in found and "FLOPs of paired (52.9 %" in found
    assert "rounded up, which favours full size" in found and "of the processor" in found
    assert "Recipe: demo with epochs=30. Machine: a machine." in found


def test_notes_warn_of_different_machines():
    rows = [row("fixed", machines=("a", "b")), row("paired", machines=("a",))]
    assert "different machines (a; b)" in "\n".join(notes(rows, manifest()))
    assert "different machines" not in "\n".join(notes(rows[1:], manifest()))


def test_forgetting_and_extra_passes_have_columns_where_there_are_any():
    forgot = row("plain", scores={"test_forgetting": Spread(0.2, 0.015)})
    kept = row("osgd", scores={"test_forgetting": Spread(-0.01)}, pass_share=Spread(0.031))
    assert format_table([row("fixed"), forgot, kept]) == (
        "contender  epochs  accuracy %    forgetting  n  FLOPs %   seconds %  extra pass %\n"
        "fixed          30       97.80             –  3     50.0  60.0 ± 2.0             –\n"
        "plain          30       97.80  20.00 ± 1.50  3     50.0  60.0 ± 2.0             –\n"
        "osgd           30       97.80         -1.00  3     50.0  60.0 ± 2.0           3.1"
    )
    said = "\n".join(notes([forgot, kept], manifest()))
    assert "Forgetting, in points of accuracy: of the classes" in said
    assert "extra pass is the part of a run's FLOPs" in said and "FLOPs and seconds" in said
    assert "extra pass" not in "\n".join(notes([forgot], manifest()))
    for words in ("orgetting", "extra pass"):
        assert words not in format_table(ROWS) + "\n".join(notes(ROWS, manifest()))
    assert kept.as_dict()["pass_share"] == {"mean": 0.031, "deviation": None}
