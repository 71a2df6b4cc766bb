"""Comparisons by the metric of the task: BLEU, of which more is better, perplexity, of which less is."""

import pytest

from growthring.compare.table import format_table
from growthring.compare.verdict import verdicts
from growthring.planning.lengths import Length
from growthring.runs import Spread
from growthring.runs.metrics import BLEU, PERPLEXITY
from tests.cli.commands import run
from tests.compare.comparisons import manifest, row


def scored(name, metric, values, flops):
    mean = sum(values) / len(values)
    return row(
        name,
        None,
        flops=flops,
        metric=metric,
        scores={metric.key: Spread(mean, 0.1)},
        values={metric.key: list(values)},
    )


def rows_of(metric, ours, theirs):
    return [scored("paired", metric, ours, 0.5), scored("fixed-flops", metric, theirs, 0.5)]


@pytest.mark.parametrize(
    ("metric", "ours", "theirs", "words"),
    [
        (
            BLEU,
            (30, 31, 32),
            (29, 29, 29),
            "paired is better than fixed-flops, the number to beat, by 2.00",
        ),
        (
            BLEU,
            (28, 28, 28),
            (29, 29, 29),
            "paired is worse than fixed-flops, the number to beat, by 1.00",
        ),
        (
            PERPLEXITY,
            (5, 5, 5),
            (5.5, 5.5, 5.5),
            "paired is better than fixed-flops, the number to beat, by 0.500",
        ),
        (
            PERPLEXITY,
            (6, 6, 6),
            (5.5, 5.5, 5.5),
            "paired is worse than fixed-flops, the number to beat, by 0.500",
        ),
    ],
)
def test_the_verdict_knows_which_way_is_better(metric, ours, theirs, words):
    rows = rows_of(metric, ours, theirs)
    (verdict,) = verdicts(rows, manifest())
    assert words in verdict.sentence("wall") and f"of {metric.name}" in verdict.sentence("wall")
    assert metric.name in format_table(rows)


def test_a_contender_without_scores_makes_no_verdict():
    rows = rows_of(BLEU, (30, 31, 32), (29, 29, 29))
    empty = row(
        "paired", None, metric=BLEU, seeds=(), runs=(), values={}, length=Length(3, "epochs")
    )
    assert verdicts([empty, rows[1]], manifest()) == []


@pytest.mark.slow
def test_translations_are_compared_by_bleu(tmp_path, capsys):
    settings = [
        f"{key}={value}"
        for key, value in (
            *(("epochs", 2), ("stages", 2), ("num_train", 48), ("batch_size", 12)),
            *(("model_options.d_model", 8), ("model_options.num_heads", 2)),
            *(("model_options.d_embed", 8), ("model_options.num_encoder_layers", 1)),
            *(("model_options.num_decoder_layers", 1), ("task_options.num_test", 5)),
            *(("task_options.beam", 1), ("task_options.max_length", 16)),
        )
    ]
    given = [word for setting in settings for word in ("--set", setting)]
    out = tmp_path / "compared"
    arguments = ["compare", "--recipe", "numbers-transformer", *given, "--methods", "paired"]
    status, shown, err = run(capsys, *arguments, "--seeds", 1, "--out", out)
    assert status == 0, err
    assert "BLEU" in shown and "BLEU by sacrebleu: nrefs:1" in shown and "of BLEU" in shown
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Test BLEU over FLOPs" in page and "test perplexity" in page
    runs = sorted((out / "paired").iterdir())
    status, shown, err = run(capsys, "report", *runs, "--out", tmp_path / "page.html")
    assert status == 0 and "test BLEU" in shown, err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Samples of" in page and "BLEU by sacrebleu" in page and "test perplexity" in page
