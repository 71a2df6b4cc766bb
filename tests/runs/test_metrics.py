"""Metrics: which way is better, how numbers are written, and what configurations from strangers make of them."""

import json

import pytest

from growthring.runs import Spread
from growthring.runs.metrics import (
    ACCURACY,
    BLEU,
    LOSS,
    PERPLEXITY,
    Metric,
    headline_of,
    read_metrics,
    stored,
)
from growthring.runs.samples import read_samples, sample_lines
from growthring.runs.summary import format_table, summary_table
from tests.runs.samples import write_run

ERROR = Metric("test_error", "error", "mm", is_higher_better=False, digits=1)
WRITTEN = {
    ACCURACY: ("97.80 %", "97.80 ± 0.20 %", "test accuracy, %", 50.0),
    BLEU: ("0.98", "0.98 ± 0.00", "test BLEU", 0.5),
    PERPLEXITY: ("0.978", "0.978 ± 0.002", "test perplexity", -0.5),
    ERROR: ("1.0 mm", "1.0 ± 0.0 mm", "test error, mm", -0.5),
}


@pytest.mark.parametrize("metric", WRITTEN)
def test_how_a_number_is_written_and_which_way_is_better(metric):
    one, mean, axis, gain = WRITTEN[metric]
    assert metric.text(0.978) == one and metric.text(Spread(0.978, 0.002)) == mean
    assert metric.axis == axis and metric.gain(0.5, 1.0) == gain == -metric.gain(1.0, 0.5)
    assert metric.gain_unit == ("points of accuracy" if metric is ACCURACY else f"of {metric.name}")


def test_what_is_stored_comes_back():
    metrics = (BLEU, ERROR, LOSS)
    assert read_metrics({"metrics": stored(metrics)}) == metrics


@pytest.mark.parametrize(
    "found",
    [
        None,
        3,
        "test_bleu",
        [None],
        [{}],
        [{"key": 1, "name": "x"}],
        [{"key": "a", "name": "b", "digits": "2"}],
    ],
)
def test_damaged_metrics_are_passed_over(found):
    assert read_metrics({"metrics": found}) == () and read_metrics({}) == ()


def test_a_stranger_cannot_turn_a_known_metric_round_or_ask_for_a_million_digits():
    turned = {"key": "test_loss", "name": "loss", "is_higher_better": True, "digits": 4}
    endless = {"key": "mine", "name": "mine", "digits": 10**9, "unit": None}
    assert read_metrics({"metrics": [turned, endless]}) == (LOSS, Metric("mine", "mine", digits=9))


def test_the_headline_is_the_first_metric_that_was_measured():
    numbers = {"test_bleu": None, "test_perplexity": 3.0, "test_loss": 1.0}
    own = (BLEU, PERPLEXITY, LOSS, ACCURACY)
    assert headline_of([(own, numbers)]) is PERPLEXITY
    assert headline_of([(own, numbers), (own, {"test_bleu": 1.0})]) is BLEU
    assert headline_of([((), {"test_accuracy": 0.5, "test_loss": 1.0})]) is ACCURACY
    assert headline_of([((BLEU,), {})]) is BLEU and headline_of([]) is ACCURACY


def test_a_summary_has_the_metric_of_its_runs(tmp_path):
    scores = {"test_bleu": 31.25, "test_perplexity": 5.0}
    write_run(tmp_path / "a")
    for name, more in (
        ("config", {"metrics": stored((BLEU, PERPLEXITY))}),
        ("result", {"scores": scores}),
    ):
        file = tmp_path / "a" / f"{name}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
    (row,) = summary_table([tmp_path / "a"])
    assert (row.metric, row.quality) == (BLEU, Spread(31.25))
    assert "test BLEU" in format_table([row]) and "31.25 " in format_table([row])


SAMPLES = '{"samples": [[["source", "Hund"], ["translation", "dog"]], [], 3, [["a", 1], ["b"]]]}'


def test_samples_are_read_as_far_as_they_go(tmp_path):
    assert read_samples(tmp_path) == [] == sample_lines(tmp_path)
    write_run(tmp_path / "a")
    (tmp_path / "a" / "samples.json").write_text(SAMPLES)
    assert read_samples(tmp_path / "a") == [
        [("source", "Hund"), ("translation", "dog")],
        [("a", "1")],
    ]
    assert sample_lines(tmp_path / "a", 1) == ["", "  source       Hund", "  translation  dog"]
    (tmp_path / "a" / "samples.json").write_text("{")
    assert read_samples(tmp_path / "a") == []
