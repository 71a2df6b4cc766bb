"""The section of accuracy per stage: its numbers, its axis, what is missing, and who has none."""

import itertools
import json
import re

import pytest

from growthring.report import render
from growthring.report.seen import seen_section, seen_sections
from growthring.runs.configurations import group_runs
from growthring.runs.run import read_runs
from tests.report.test_page import Checker, boxed, frame, section
from tests.runs.samples import stage_records, write_run, write_stream

LOST = {"plain": 0.30, "osgd": 0.12}


def streams(folder, seeds=3):
    """Two configurations over the seeds; a seed forgets a point more than the one before."""
    return [
        write_stream(
            folder / f"{kind}{seed}", kind, seed, scores={"test_forgetting": lost + 0.01 * seed}
        )
        for kind, lost in LOST.items()
        for seed in range(seeds)
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    return render([*streams(folder), write_run(folder / "fixed", True)])


def one(folder, stages, **options):
    """The section of a single run."""
    return section(render([write_stream(folder, "plain", 1, stages, **options)]), "seen")


def points(figure):
    """The points of each curve, in the units of the axes."""
    left, right, bottom, top, x0, x1, y0, y1, _ = frame(figure)
    found = []
    for path in re.findall(r'<path d="M([^"]+)" class="curve', figure):
        places = [tuple(map(float, point.split(","))) for point in path.split("L")]
        found.append(
            [
                (
                    x0 + (x1 - x0) * (x - left) / (right - left),
                    y0 + (y1 - y0) * (y - bottom) / (top - bottom),
                )
                for x, y in places
            ]
        )
    return found


def table_rows(markup, caption):
    """The texts of a table's cells, its head first."""
    body = markup.split(f"<caption>{caption}")[1].split("</table>")[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in body.split("<tr>")[1:]]
    return [[re.sub(r"<[^>]+>", " ", cell).strip() for cell in row] for row in rows]


def test_two_configurations_over_stages_and_over_flops(page):
    Checker(page)
    seen = section(page, "seen")
    over_stages, over_flops = seen.split("</figure>")[:2]
    expected = [[90, 75, 66, 60], [90, 80, 75, 70]]
    for figure, places in ((over_stages, [0, 1, 2, 3]), (over_flops, [25, 50, 75, 100])):
        for curve, accuracies in zip(points(figure), expected, strict=True):
            assert [x for x, _ in curve] == pytest.approx(places, abs=0.1)
            assert [y for _, y in curve] == pytest.approx(accuracies, abs=0.1)
        assert figure.count('class="band"') == 2 and figure.count("<circle") == 8
    ticks = re.findall(r'text-anchor="middle">([^<]+)</text>', over_stages)
    assert ticks == ["20", "30", "40", "50"] and ">classes seen</text>" in over_stages
    assert ">FLOPs of fixed-size training, %</text>" in over_flops
    assert seen.count("(3 seeds)") == 2 and "fixed-size</span>" not in seen  # of the legend


def test_bands_are_as_wide_as_the_deviation(page):
    figure = section(page, "seen").split("</figure>")[0]
    _, _, bottom, top, _, _, y0, y1, _ = frame(figure)
    band = re.search(r'<path d="M([^"]+)Z" class="band"', figure).group(1).split("L")
    heights = [float(point.split(",")[1]) for point in band]
    values = [y0 + (y1 - y0) * (height - bottom) / (top - bottom) for height in heights]
    assert values == pytest.approx([91, 76, 67, 61, 59, 65, 74, 89], abs=0.1)


def test_what_is_said_on_hover(page):
    told = re.findall(r'data-told="([^"]+)"', section(page, "seen"))
    assert len(told) == 4
    first, *_, last = told[1].split("|")
    assert first.splitlines() == [
        "stage 0, 20 classes, 2,000 examples",
        "test accuracy: 90.00 ± 1.00 %",
        "FLOPs of fixed-size training: 25 %",
    ]
    assert "test accuracy: 70.00 ± 1.00 %" in last


def test_colours_are_those_of_the_curves(page):
    looks = r'<path d="[^"]+" class="curve(?: faint)?" style="([^"]+)" data-label="([^",]+, grown, osgd=\w+)'
    of_curves = {label: style for style, label in re.findall(looks, section(page, "curves"))}
    of_stages = {label: style for style, label in re.findall(looks, section(page, "seen"))}
    assert of_curves == of_stages and len(of_stages) == 2


def test_the_table_in_numbers(page):
    rows = table_rows(section(page, "seen"), "Test accuracy at the end of each stage")
    assert rows[0][:4] == [
        "configuration",
        "mean over stages",
        "forgetting points",
        "stage 0 20 classes",
    ]
    plain = ["72.75 ± 1.00", "31.00 ± 1.00", "90.0 ± 1.0", "75.0 ± 1.0", "66.0 ± 1.0", "60.0 ± 1.0"]
    osgd = ["78.75 ± 1.00", "13.00 ± 1.00", "90.0 ± 1.0", "80.0 ± 1.0", "75.0 ± 1.0", "70.0 ± 1.0"]
    assert [row[1:] for row in rows[1:]] == [plain, osgd]


def test_what_was_known_of_the_classes_of_each_stage(page):
    seen = section(page, "seen")
    assert seen.count("<details>") == 3  # the cost, and one for each configuration
    rows = table_rows(
        seen, "Test accuracy on the classes that each stage brought, %, mean over 3 seeds"
    )
    assert [row[1:] for row in rows[1:]] == [
        ["90.0", "–", "–", "–"],
        ["70.0", "80.0", "–", "–"],
        ["50.0", "60.0", "84.0", "–"],
        ["40.0", "50.0", "60.0", "82.0"],
    ]
    assert seen.count('class="heat"') == 2 * 10 and 'style="--heat:40%"' in seen  # 45 % of 0.9


def test_the_cost_of_the_stages(page):
    seen = section(page, "seen")
    assert table_rows(seen, "FLOPs of training so far")[1][1:] == ["25.0", "50.0", "75.0", "100.0"]
    assert table_rows(seen, "Seconds of training so far")[2][1:] == ["10", "20", "30", "40"]


def test_the_clock_of_the_processor(tmp_path):
    seen = section(render(streams(tmp_path, 1), clock="cpu"), "seen")
    assert table_rows(seen, "CPU seconds of training so far")[1][1:] == ["8", "16", "24", "32"]


def test_forgetting_is_defined_and_in_the_result(page):
    assert "the best accuracy on them before the last stage" in section(page, "seen")
    result = table_rows(section(page, "headline"), "FLOPs and seconds")
    assert result[0][2] == "forgetting"
    assert [row[2] for row in result[1:]] == ["31.00 ± 1.00 %", "13.00 ± 1.00 %", "–"]


def test_every_chart_and_table_is_in_a_box_that_scrolls(page):
    seen = section(page, "seen")
    assert boxed(seen, "table") == 1 + 2 + 2 and boxed(seen, "svg") == 2


def test_there_is_no_section_where_no_run_has_stages_of_its_data(tmp_path):
    page = render([write_run(tmp_path / "a"), write_run(tmp_path / "b", True)])
    assert "Accuracy per stage" not in page and "forgetting" not in page
    assert seen_sections(group_runs(read_runs([tmp_path / "a"]))) == []
    assert "No run has come to the end" in seen_section([])


def test_one_seed_has_no_band_and_no_deviation(tmp_path):
    seen = section(render(streams(tmp_path, 1)), "seen")
    assert "band" not in seen.lower() and "±" not in seen and seen.count("<circle") == 16


def test_unfinished_runs_are_shown_as_far_as_they_go(tmp_path):
    seen = one(tmp_path / "a", stage_records("plain", 1, 2), num_epochs=9)
    rows = table_rows(seen, "Test accuracy at the end of each stage")
    assert rows[1] == ["demo, grown  epoch 9 of 60", "82.50", "20.00", "90.0", "75.0"]
    first = one(tmp_path / "b", stage_records("plain", 1, 1), num_epochs=9)
    assert "forgetting" not in first.lower() and first.count("<circle") == 2


def test_missing_values(tmp_path):
    lines = stage_records("plain", 1)
    lines[1]["accuracy"] = None
    lines[2]["parts"] = [None, 0.6]
    for line in lines:
        line["flops"] = line["seconds"] = None
    seen = one(tmp_path / "a", lines)
    Checker(f"<p>{seen.split('>', 1)[1]}</p>")
    assert "The same over FLOPs: left out" in seen and "Cost up to" not in seen
    rows = table_rows(seen, "Test accuracy at the end of each stage")
    assert rows[1][1] == "–" and rows[1][3:] == ["90.0", "–", "66.0", "60.0"]
    assert table_rows(seen, "Test accuracy on the classes that each stage")[3][1:] == [
        "–",
        "60.0",
        "–",
        "–",
    ]
    (curve,) = points(seen.split("</figure>")[0])
    assert [y for _, y in curve] == pytest.approx([90, 66, 60], abs=0.1)


def test_nothing_is_known_but_that_stages_ended(tmp_path):
    bare = [{"kind": "stage", "stage": t} for t in range(3)]
    seen = one(tmp_path / "a", bare)
    assert seen.count("left out") == 2 and "<details" not in seen
    assert table_rows(seen, "Test accuracy")[1][1:] == ["–"] * 4


@pytest.mark.parametrize(
    ("changes", "title", "ticks"),
    [
        ({"classes": 10}, "share of the data", ["40 %", "60 %", "80 %", "100 %"]),
        ({"classes": None}, "share of the data", ["40 %", "60 %", "80 %", "100 %"]),
        ({"classes": 10, "examples": 500}, "stage", ["0", "1", "2", "3"]),
        ({"classes": None, "examples": None}, "stage", ["0", "1", "2", "3"]),
    ],
)
def test_stages_are_called_by_what_grows(tmp_path, changes, title, ticks):
    seen = one(tmp_path / "a", stage_records("plain", 1, **changes))
    figure = seen.split("</figure>")[0]
    assert re.findall(r'text-anchor="middle">([^<]+)</text>', figure) == ticks
    assert f">{title}</text>" in figure


def test_of_unfinished_runs_the_share_of_the_data_is_unknown(tmp_path):
    lines = stage_records("plain", 1, 2, classes=10)
    assert ">share of the data<" not in one(tmp_path / "a", lines, num_epochs=9)


def test_configurations_with_other_classes_share_the_stages_only(tmp_path):
    runs = [
        write_stream(tmp_path / "a", "plain", 1),
        write_stream(
            tmp_path / "b", "osgd", 1, stage_records("osgd", 1, 2, classes=25, examples=9)
        ),
    ]
    seen = section(render(runs), "seen")
    assert re.findall(r'text-anchor="middle">([^<]+)</text>', seen)[:4] == ["0", "1", "2", "3"]
    rows = table_rows(seen, "Test accuracy at the end of each stage")
    assert rows[0][3:] == ["stage 0", "stage 1", "stage 2 40 classes", "stage 3 50 classes"]
    assert rows[2][3:] == ["90.0", "80.0", "–", "–"]


def test_very_many_stages(tmp_path):
    lines = [{"kind": "stage", "stage": t, "accuracy": 0.5, "classes": t + 1} for t in range(1000)]
    lines += [{"kind": "stage", "stage": 10**90, "accuracy": 0.5, "parts": [0.1] * 400}]
    seen = one(tmp_path / "a", lines)
    assert len(table_rows(seen, "Test accuracy at the end of each stage")[0]) == 2 + 25
    assert "Left out: 976 stages between these." in seen
    assert seen.split("</figure>")[0].count("<circle") <= 200 and len(seen) < 200_000


def test_labels_of_many_stages_do_not_overlap(tmp_path):
    lines = stage_records("plain", 1)
    many = [{**lines[3], "stage": t, "classes": 1000 * (t + 1)} for t in range(60)]
    figure = one(tmp_path / "a", many).split("</figure>")[0]
    found = re.findall(r'<text x="([\d.]+)" y="275" text-anchor="(\w+)">([^<]+)<', figure)
    assert 8 < len(found) < 60
    for (x1, _, label), (x2, _, other) in itertools.pairwise(found):
        assert float(x2) - float(x1) > 3 * (len(label) + len(other))


def test_names_are_escaped(tmp_path):
    evil = "</script><script>alert(1)</script>\"'|&"
    run = write_stream(tmp_path / "a", "plain", 1, scores={"test_forgetting": evil})
    made = json.loads((run / "config.json").read_text()) | {"name": evil}
    (run / "config.json").write_text(json.dumps(made))
    log = run / "metrics.jsonl"
    odd = {"kind": "stage", "stage": 9, "accuracy": evil, "classes": evil, "parts": [evil]}
    log.write_text(log.read_text() + json.dumps(odd) + "\n")
    assert Checker(render([run])).seen.count("script") == 1
