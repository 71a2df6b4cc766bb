import json
import random
import re
from html.parser import HTMLParser

import pytest

from growthring.errors import GrowthError
from growthring.report import render, write_report
from tests.runs.samples import config, metrics, stage_records, write_run

SECTIONS = ["Result", "Curves", "Stages", "Learning rates", "Growths", "Settings", "Notes"]


class Checker(HTMLParser):
    """Checks that elements nest, and collects the texts and the classes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        assert not [name for name, _ in attrs if name.startswith("on")]
        for _, value in attrs:
            assert not re.search(r"\b(nan|inf)\b", value or "")
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def section(page: str, key: str) -> str:
    """The markup of one section."""
    return page.split(f'<section class="{key}"')[1].split("</section>")[0]


def frame(figure: str) -> list[float]:
    """The corners of the first chart, in its own units and in those of the values."""
    return [float(v) for v in re.search(r'data-frame="([^"]+)"', figure).group(1).split()]


def path_of(figure: str) -> str:
    """The points of the first curve."""
    return re.search(r'<path d="M([^"]+)" class="curve', figure).group(1)


def boxed(page: str, name: str) -> int:
    """How many tables or charts there are; all of them are in a box that scrolls."""
    kinds = {"table": r"<table", "svg": r'<svg class="(?:chart|stages|costs)|<svg xmlns'}
    found = re.findall(rf'(<div class="scroll[^>]*>)?(?:{kinds[name]})', page)
    assert all(found)
    return len(found)


def curves(page: str) -> int:
    return len(re.findall(r'class="curve( faint)?"', page))


def test_a_grown_and_a_fixed_size_run(tmp_path):
    runs = [write_run(tmp_path / "grown"), write_run(tmp_path / "fixed", True)]
    page = render(runs, title="A & B")
    checker = Checker(page)
    assert all(name in checker.text for name in SECTIONS)
    for words in (
        "52.9 %",
        "demo, fixed-size",
        "Dots mark",
        "7 growths",
        "AMD EPYC",
        "aten.unfold",
    ):
        assert words in checker.text
    # Two runs in five charts; eight rings in each of seven different parameters.
    assert curves(page) == 2 * 5 + 8 * 7
    assert page.count('class="stages"') == 1
    assert "left out" not in checker.text
    assert checker.seen.count("caption") == checker.seen.count("table") > 3
    assert page.count('role="img"') == page.count('class="chart"') + page.count('class="stages"')
    assert not re.search(r"https?://|<link|<img|src=", page)


def test_rings_and_rate_factors_are_explained_beside_their_charts(tmp_path):
    page = render([write_run(tmp_path / "grown"), write_run(tmp_path / "fixed", True)])
    rates = section(page, "rates")
    assert (
        "A ring is what one stage added to a parameter: ring 0 are the entries of the seed" in rates
    )
    assert "The rate factor of a ring multiplies the learning rate for its entries" in rates
    assert "Each colour is a ring" in section(page, "stage-diagrams")


def test_the_learning_rate_of_all_runs(tmp_path):
    runs = [write_run(tmp_path / "grown"), write_run(tmp_path / "fixed", True)]
    figure = section(render(runs), "rates").split("</figure>")[0]
    assert "Learning rate over epochs" in figure and 'data-y="learning rate|"' in figure
    assert re.findall(r'data-label="([^"]+)"', figure) == ["demo, grown", "demo, fixed-size"]
    # From 0.1 to 0, over 60 epochs.
    left, right, bottom, top, x0, x1, y0, y1, log = frame(figure)
    points = [tuple(map(float, p.split(","))) for p in path_of(figure).split("L")]
    values = [y0 + (y1 - y0) * (y - bottom) / (top - bottom) for _, y in points]
    assert values[0] == pytest.approx(0.1, rel=0.01) and values[-1] == pytest.approx(0, abs=1e-4)
    assert (x0, x1, log) == (0, 60, 0) and left < right
    records = [r | {"lr": None} for r in metrics(False, 0)]
    text = Checker(render([write_run(tmp_path / "a", records=records)])).text
    assert "Learning rate over epochs: left out" in text


def test_with_the_clock_of_the_processor_all_times_are_its_own(tmp_path):
    """The samples have 0.8 CPU seconds in a second, and 0.25 in each growth."""
    runs = [write_run(tmp_path / "grown"), write_run(tmp_path / "fixed", True)]
    wall, cpu = Checker(render(runs)).text, Checker(render(runs, clock="cpu")).text
    assert "CPU" not in wall and "7 growths in 1.75 CPU s" in cpu
    for words in (
        "FLOPs and CPU seconds as shares of fixed-size training",
        "of the CPU seconds",
        "Test accuracy over CPU time",
        "CPU time, s",
    ):
        assert words in cpu and words.replace("CPU ", "") in wall
    assert not re.search(r"(?<!CPU )\b(seconds|time)\b(?! do)", cpu)
    seconds = json.loads((tmp_path / "fixed" / "result.json").read_text())["seconds"]
    assert f"{seconds:.1f} s" in wall and f"{0.8 * seconds:.1f} s" in cpu
    titles = {"wall": "Test accuracy over time</fig", "cpu": "Test accuracy over CPU time</fig"}
    frames = [frame(render(runs, clock=c).split(title)[1]) for c, title in titles.items()]
    assert frames[1][5] == pytest.approx(0.8 * frames[0][5], rel=0.1)


def test_runs_that_did_not_record_the_clock(tmp_path):
    records = [{k: v for k, v in r.items() if k != "cpu_seconds"} for r in metrics(False, 0)]
    run = write_run(tmp_path / "a", records=records)
    text = Checker(render([run], clock="cpu")).text
    assert "Test accuracy over CPU time: left out, as no run has recorded both values." in text
    assert "7 growths in" in text and "81." not in text


def test_every_chart_and_table_is_in_a_box_that_scrolls(tmp_path):
    runs = [write_run(tmp_path / "grown"), write_run(tmp_path / "fixed", True, lr=0.2)]
    page = render(runs)
    assert boxed(page, "table") > 4 and boxed(page, "svg") == 4 + 1 + 7 + 1
    style = page.split("<style>")[1].split("</style>")[0]
    assert ".scroll{overflow-x:auto" in style and ".scroll>svg{display:block;width:100%" in style


def test_seeds_share_a_legend_entry_and_a_colour(tmp_path):
    page = render([write_run(tmp_path / f"{seed}", seed=seed) for seed in range(3)])
    assert "(3 seeds)" in page and "demo, grown, seed 2" in page
    assert "mean ± sample standard deviation" in page
    assert set(re.findall(r'class="curve faint" style="stroke:([^"]+)"', page)) == {"var(--c0)"}


def test_twenty_configurations_look_different(tmp_path):
    page = render([write_run(tmp_path / f"{i}", num_epochs=3, lr=i) for i in range(20)])
    looks = re.findall(
        r'class="curve" (style="[^"]+"(?: stroke-dasharray="[^"]+")?) data-label="demo', page
    )
    assert len(looks) == 100 and len(set(looks)) == 20


def test_names_are_escaped(tmp_path):
    evil = "</script><script>alert(1)</script>\"'&\x00\ud800"
    records = metrics(False, 0, num_epochs=9)
    for record in records:
        if record["kind"] == "rates":
            record["factors"] = {evil: [1.0, 2.0]}
    run = write_run(tmp_path / "<i>run", name=evil, records=records)
    made = config(False, 0, evil, **{evil: evil})
    made |= {"machine": evil, "versions": {evil: evil}}
    made["plan"]["notes"] = [evil]
    made["plan"]["widths"] = [{evil: w} for w in (1, 2, 3, 4, 5, 6, 7, 8)]
    (run / "config.json").write_text(json.dumps(made))
    page = render([run, run.parent / "<i>none"], title=evil)
    checker = Checker(page)
    assert checker.seen.count("script") == 1
    assert "<i>run" not in page and "alert(1)" in checker.text
    page.encode("utf-8")


@pytest.mark.parametrize("num_epochs", [0, 1, 2, 9])
def test_unfinished_runs(tmp_path, num_epochs):
    page = render([write_run(tmp_path / "a", num_epochs=num_epochs)])
    text = Checker(page).text
    if num_epochs == 0:
        assert "no curves" in text and "no rate factors" in text and "no metrics" in text
    else:
        assert f"epoch {num_epochs} of 60" in text and ">now<" in page


def test_empty_and_missing_directories(tmp_path):
    text = Checker(render([tmp_path, tmp_path / "none"])).text
    assert "There is no such directory." in text and "It has no config.json." in text
    for words in ("no curves", "no stage diagram", "no table of growths", "no settings"):
        assert f"There is {words}" in text or f"There are {words}" in text
    assert "No runs were given" in Checker(render([])).text


def test_missing_values_leave_out_a_chart_with_a_sentence(tmp_path):
    dropped = ("seconds", "train_loss")
    records = [{k: None if k in dropped else v for k, v in r.items()} for r in metrics(False, 0)]
    text = Checker(render([write_run(tmp_path / "a", records=records)])).text
    assert (
        "Test accuracy over time: left out" in text
        and "Training loss over epochs: left out" in text
    )


def test_losses_stand_in_for_missing_accuracies(tmp_path):
    records = [r | {"test_accuracy": None} for r in metrics(False, 0)]
    assert "Test loss over epochs" in render([write_run(tmp_path / "a", records=records)])


def test_non_finite_values_leave_gaps(tmp_path):
    records = metrics(False, 0)
    for index, record in enumerate(records):
        for key in ("train_loss", "test_accuracy", "seconds"):
            if key in record and index % 3:
                record[key] = [float("nan"), "NaN", float("-inf"), None][index % 4]
    page = render([write_run(tmp_path / "a", records=records)])
    Checker(page)
    assert curves(page) == 5 + 8 * 7


def test_any_value_in_any_place(tmp_path):
    """Replaces random parts of the files by values that do not belong there."""
    source = random.Random(0)
    odd = [None, True, -1, 0, 1e308, -1e90, 1e-310, "x", "", [], {}, [None], [{}], {"a": None}, 2.5]

    def spoil(value, chance):
        if source.random() < chance:
            return source.choice(odd)
        if isinstance(value, dict):
            return {key: spoil(child, chance) for key, child in value.items()}
        return [spoil(child, chance) for child in value] if isinstance(value, list) else value

    for trial in range(60):
        chance = source.choice([0.002, 0.02, 0.2])
        records = metrics(trial % 2 == 1, 0, num_epochs=9) + stage_records("plain", 1)
        run = write_run(tmp_path / f"{trial}", trial % 2 == 1, records=records)
        lines = (run / "metrics.jsonl").read_text().splitlines()
        spoiled = [json.dumps(spoil(json.loads(line), chance)) for line in lines]
        (run / "metrics.jsonl").write_text("\n".join(spoiled) + "\n")
        made = spoil(json.loads((run / "config.json").read_text()), chance)
        (run / "config.json").write_text(json.dumps(made))
        result = spoil({"test_accuracy": 0.9, "seconds": 3.0, "flops": 1e9}, chance)
        (run / "result.json").write_text(json.dumps(result))
        Checker(render([run]))
    Checker(render(sorted(tmp_path.iterdir())))


def test_report_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "report.html"
    assert write_report([write_run(tmp_path / "a")], path) == path
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(
        GrowthError, match=r"cannot write '.*folder': .*\. What was there before is as it was"
    ):
        write_report([], target)
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]
