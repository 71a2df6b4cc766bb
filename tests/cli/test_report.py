"""growthring report: runs in a table, a page and JSON."""

import json

import pytest

from growthring.cli import main
from growthring.train import Silence, Trainer
from tests.cli.commands import run
from tests.train.runs import Killer, small


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    Trainer(small(), folder / "grown", progress=Silence()).fit()
    Trainer(small("fixed=true"), folder / "fixed", progress=Silence()).fit()
    return [folder / "grown", folder / "fixed"]


def test_table_and_page(runs, capsys, tmp_path):
    page = tmp_path / "page.html"
    status, out, _ = run(capsys, "report", *runs, "--out", page, "--title", "Rings & <more>")
    assert status == 0 and f"wrote {page}" in out
    assert "small" in out and "%" in out and "FLOPs" in out
    text = page.read_text("utf-8")
    assert text.lstrip().lower().startswith("<!doctype html")
    assert "Rings &amp; &lt;more&gt;" in text and "<more>" not in text
    assert "http://" not in text.replace("http://www.w3.org", "") and "src=" not in text


def test_json(runs, capsys, tmp_path):
    status, out, _ = run(capsys, "report", *runs, "--out", tmp_path / "page.html", "--json")
    rows = json.loads(out)
    assert status == 0 and len(rows) == 2 and all(isinstance(row, dict) for row in rows)


def test_the_clock_of_the_processor(runs, capsys, tmp_path):
    page = tmp_path / "page.html"
    status, out, _ = run(capsys, "report", *runs, "--out", page, "--clock", "cpu")
    assert (
        status == 0 and "CPU seconds" in out and "Test accuracy over CPU time" in page.read_text()
    )
    status, out, _ = run(capsys, "report", *runs, "--out", page, "--clock", "cpu", "--json")
    results = [json.loads((folder / "result.json").read_text()) for folder in runs]
    found = [row["seconds"]["mean"] for row in json.loads(out)]
    assert found == [result["cpu_seconds"] for result in results]
    lines = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    timed = [line for line in lines if line["kind"] in ("epoch", "growth")]
    assert all(line["cpu_seconds"] > 0 for line in timed) and len(timed) == 3 + 2


def test_by_default_the_page_is_in_the_present_folder(runs, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "report", runs[0])[0] == 0
    assert (tmp_path / "report.html").is_file()


def test_missing_and_empty_folders(runs, capsys, tmp_path):
    status, out, err = run(capsys, "report", runs[0], tmp_path / "no")
    assert status == 2 and out == "" and "there is no folder" in err
    (tmp_path / "empty").mkdir()
    status, out, _ = run(capsys, "report", tmp_path / "empty", "--out", tmp_path / "page.html")
    assert status == 0 and "no metrics" in out


def test_a_page_that_cannot_be_written(runs, capsys, tmp_path):
    status, _, err = run(capsys, "report", runs[0], "--out", tmp_path / "no" / "page.html")
    assert status == 2 and "Traceback" not in err


def test_an_unfinished_run(runs, capsys, tmp_path):
    def stop():
        raise RuntimeError("stopped by the test")

    with pytest.raises(RuntimeError, match="stopped"):
        Trainer(small(), tmp_path / "run", progress=Killer(5, stop)).fit()
    page = tmp_path / "page.html"
    status, out, err = run(capsys, "report", runs[1], tmp_path / "run", "--out", page)
    assert status == 0 and page.is_file(), err
    assert out.count("small") >= 2


def test_regression_has_no_accuracy(capsys, tmp_path):
    from tests.train.test_library import trainer_for

    trainer_for(tmp_path / "run").fit()
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "run"), "--out", str(page)]) == 0
    assert "nan" not in capsys.readouterr().out.lower() and page.is_file()
