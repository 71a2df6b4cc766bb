"""The plot: well-formed, self-contained, every point labelled, no label on another."""

import random
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from growthring.compare.contenders import KNOWN
from growthring.compare.labels import Box, place
from growthring.compare.plot import plot
from growthring.planning.lengths import Length
from growthring.runs import Spread
from growthring.runs.metrics import LOSS
from tests.compare.comparisons import row

NAME = "{http://www.w3.org/2000/svg}"
FIXED = [
    row("fixed", 0.98, 0.001, 1.0, 1.0),
    row("fixed-flops", 0.97, 0.001, 0.53, 0.54, length=Length(16, "epochs")),
]


def labels(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [e.text for e in root.iter(f"{NAME}text") if e.get("class") == "label"]


def test_each_contender_is_in_both_charts():
    rows = [*FIXED, row("paired", 0.975, 0.002), row("odd & <even>", 0.96)]
    svg = plot(rows)
    assert sorted(labels(svg)) == sorted(2 * [r.name for r in rows])
    root = ElementTree.fromstring(svg)
    assert sum(e.get("class") == "spread" for e in root.iter()) == 3 + (3 + 4)  # vertical, + level
    assert len([e for e in root.iter(f"{NAME}rect") if e.get("width") == "8"]) == 4  # full size
    assert not re.search(r"(href|src|url\()", svg)


def test_full_size_trainings_are_joined_from_the_shortest_to_the_longest():
    root = ElementTree.fromstring(plot([*FIXED, row("paired")]))
    lines = [e.get("d") for e in root.iter() if e.get("class") == "fixed-line"]
    assert len(lines) == 2
    for line in lines:
        (x1, y1), (x2, y2) = (map(float, p.split(",")) for p in line[1:].split("L"))
        assert x1 < x2 and y1 > y2  # cheaper and worse first
    assert 'class="fixed-line"' not in plot([FIXED[0], row("paired")])
    other = replace(FIXED[0], name="fixed-osgd", flops_share=Spread(1.1))
    assert 'class="fixed-line"' not in plot([FIXED[0], other]), "another way, of the same length"


def test_missing_values_and_no_rows():
    for rows in ([], [row(accuracy=None, loss=None)], [row(runs=(), seeds=())]):
        svg = plot(rows)
        ElementTree.fromstring(svg)
        assert labels(svg) == [] and "No run is finished yet" in svg
    assert labels(plot([row(seconds=None)])) == ["paired"]
    assert "Test loss over FLOPs" in plot([row(accuracy=None, metric=LOSS)])


def test_one_point_and_equal_points():
    for rows in ([row()], [row(), row("b")], [row(accuracy=0.0, flops=0.0, seconds=0.0)]):
        ElementTree.fromstring(plot(rows))
        assert "nan" not in plot(rows)


@pytest.mark.parametrize("seed", range(6))
def test_no_label_covers_another_or_leaves_the_chart(seed):
    draw = random.Random(seed)
    names = list(KNOWN)[: 6 + 4 * seed]
    points = [(250 + draw.gauss(0, 20), 150 + draw.gauss(0, 50)) for _ in names]
    frame = Box(40, 30, 520, 350)
    boxes = place(names, points, [], frame)
    for i, box in enumerate(boxes):
        assert box.outside(frame) == pytest.approx(0.0, abs=1e-6)
        assert sum(box.overlap(other) for other in boxes[:i]) == 0.0


def test_labels_keep_off_points_and_bars():
    bar = Box(55, 45, 120, 55)
    (box,) = place(["name"], [(50, 50)], [bar], Box(0, 0, 200, 100))
    assert box.overlap(bar) == 0.0 and box.overlap(Box(45, 45, 55, 55)) == 0.0
