"""The page of a comparison: its clock in every chart and table, and boxes that scroll."""

import re

import pytest

from growthring.compare.page import configurations_of, render
from tests.compare.comparisons import manifest, row
from tests.report.test_page import Checker, boxed, section
from tests.runs.samples import write_run, write_stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of two contenders; the samples have 0.8 CPU seconds in a second."""
    out = tmp_path_factory.mktemp("comparison")
    for seed in range(3):
        write_run(out / "fixed" / f"seed-{seed}", True, seed)
        write_run(out / "paired" / f"seed-{seed}", False, seed)
    return out


ROWS = [row("fixed", 0.98, 0.001, 1.0, 1.0), row("paired", 0.975, 0.002)]


def page_of(folder, rows, **changes) -> str:
    made = manifest(**changes)
    return render(rows, made, configurations_of(folder, rows, made.clock))


def last_second(page: str, name: str) -> float:
    """Where the axis of a chart over time ends."""
    chart = page.split(f"{name}</figcaption>")[1]
    return float(re.search(r'data-frame="([^"]+)"', chart).group(1).split()[5])


def test_each_clock_is_named_wherever_there_are_seconds(folder):
    wall, cpu = (page_of(folder, ROWS, clock=clock) for clock in ("wall", "cpu"))
    assert "CPU" not in wall
    for words in ("CPU seconds %", "Test accuracy over CPU seconds", "Test accuracy over CPU time"):
        assert words in cpu and words.replace("CPU ", "") in wall
    ends = (
        last_second(wall, "Test accuracy over time"),
        last_second(cpu, "Test accuracy over CPU time"),
    )
    assert ends[1] == pytest.approx(0.8 * ends[0], rel=0.1)
    unsaid = re.findall(r"(?<!CPU )\b(?:seconds|time)\b.{0,19}", Checker(cpu).text)
    assert unsaid == ["seconds (of the processor,"]


def test_the_learning_rate_and_what_it_is(folder):
    rates = section(page_of(folder, ROWS), "rates")
    assert rates.count('class="curve faint"') == 6 and "Learning rate over epochs" in rates
    assert "A ring is what one stage added to a parameter" in rates and "rate factor" in rates


def test_charts_and_tables_are_in_boxes_that_scroll(folder):
    page = page_of(folder, ROWS)
    assert boxed(page, "table") == 2 and boxed(page, "svg") == 1 + 4 + 1


def test_nothing_is_finished_yet(tmp_path):
    unfinished = [row("fixed", None, flops=None, seconds=None, runs=(), seeds=())]
    text = Checker(page_of(tmp_path, unfinished)).text
    assert "There are no curves" in text and "Learning rate over epochs: left out" in text
    assert "Accuracy per stage" not in text


def test_accuracy_per_stage_of_the_contenders_that_have_it(folder, tmp_path):
    for seed in range(3):
        write_stream(tmp_path / "paired" / f"seed-{seed}", "osgd", seed)
        write_run(tmp_path / "fixed" / f"seed-{seed}", True, seed)
    page = page_of(tmp_path, ROWS)
    seen = section(page, "seen")
    Checker(page)
    assert re.findall(r'class="curve" style="stroke:([^"]+)" data-label="(\w+)"', seen) == [
        ("var(--c0)", "paired"),
        ("var(--c0)", "paired"),
    ]
    assert "78.75 ± 1.00" in seen and "80.0 ± 1.0" in seen  # over stages; of stage 1
    assert 'class="seen"' not in page_of(folder, ROWS)
    shares = re.search(r"FLOPs of training so far.*?</table>", seen, re.S).group(0)
    assert re.findall(r"<td>([\d.]+)</td>", shares) == ["25.0", "50.0", "75.0", "100.0"]
