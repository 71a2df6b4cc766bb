"""docs/when-it-pays.md has the numbers of results/pays, and these are of the runs that they name."""

import json
from pathlib import Path

import pytest

from growthring.train.advice import FALL, FALL_ERROR
from scripts.pays import page
from scripts.pays.advice import fall
from scripts.pays.cells import Results
from scripts.pays.curves import spread, steps_to
from scripts.pays.run import Run
from scripts.pays.tables import BEGIN

RESULTS = Path("results/pays")


def test_every_result_is_of_the_run_that_names_its_file():
    files = sorted(RESULTS.glob("*-*.json"))
    assert len(files) > 100
    for file in files:
        result = json.loads(file.read_text())
        assert Run(**result["run"]).key == file.stem


@pytest.mark.parametrize("file", page.PAGES, ids=lambda path: path.stem)
def test_the_pages_have_the_tables_of_the_results(file):
    text = file.read_text()
    tables = {name: make(Results(RESULTS, None)) for name, make in page.PAGES[file].items()}
    for name, lines in tables.items():
        assert BEGIN.format(name) in text, name
        assert "\n".join(lines) in text, f"{name}: run python -m scripts.pays.page"


def test_advise_takes_off_what_the_main_settings_showed():
    assert fall(Results(RESULTS, None)) == pytest.approx((FALL, FALL_ERROR), abs=0.002)


def test_steps_to_a_loss_lie_on_a_line_in_their_logarithm():
    points = [(100, 2.0), (400, 1.0), (800, 0.9)]
    assert steps_to(2.0, points) == pytest.approx(100)
    assert steps_to(1.5, points) == pytest.approx(200)
    assert steps_to(0.95, points) == pytest.approx(800 / 2**0.5)
    assert steps_to(0.8, points) == pytest.approx(1600)  # beyond the end
    assert steps_to(2.5, points) == pytest.approx(50)  # and before the beginning
    assert steps_to(1.0, [(100, 1.0), (400, 1.1)]) is None  # longer is no better


def test_means_and_deviations():
    assert spread([1.0, 3.0], 1) == "2.0 ± 1.4"
    assert spread([1.0], 1, "+") == "+1.0" and spread([], 1) == "–"
