"""The page in a real browser, where there is one."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from growthring.report import write_report
from tests.runs.samples import write_run, write_stream

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]

# Points at the middle of a curve and, when all has run, marks the page.
POINT = """<script>
const curve = document.querySelector(".curve");
const [x, y] = curve.getAttribute("d").slice(1).split("L")[30].split(",").map(Number);
const chart = curve.ownerSVGElement.ownerSVGElement;
const at = new DOMPoint(x, y).matrixTransform(chart.getScreenCTM());
chart.dispatchEvent(new PointerEvent("pointermove", {clientX: at.x, clientY: at.y}));
</script>"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def load(page: Path, profile: Path) -> tuple[str, list[str]]:
    """Returns the DOM after the scripts have run, and what they wrote to the console."""
    options = [f"--user-data-dir={profile}", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *FLAGS, *options, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=1800,  # only ever turns a hang into a failure
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_page_in_chromium(tmp_path):
    runs = [write_run(tmp_path / "grown"), write_run(tmp_path / "fixed", True)]
    report = write_report(runs, tmp_path / "report.html")
    report.write_text(report.read_text().replace("</body>", f"{POINT}</body>"))
    dom, console = load(report, tmp_path / "profile")
    assert console == []
    assert len(re.findall(r'<path [^>]*class="curve[ "]', dom)) == 2 * 5 + 8 * 7
    assert len(re.findall(r'<svg class="(chart|stages)', dom)) == 5 + 7 + 1
    for words in ("52.9 %", "demo, fixed-size", "Stages of demo, grown", "ring 7", "7 growths"):
        assert words in dom
    tip = re.search(r'<div id="tip"[^>]*>([^<]*)</div>', dom)
    assert tip and "hidden" not in tip.group(0)
    label, value, place = tip.group(1).splitlines()
    assert label == "demo, grown" and place.strip() == "epochs: 31"
    assert re.fullmatch(r"test accuracy: 9\d\.\d+ %", value)
    assert 'class="curve near"' in dom


def test_accuracy_per_stage_in_chromium(tmp_path):
    runs = [write_stream(tmp_path / f"{seed}", "osgd", seed) for seed in range(3)]
    report = write_report(runs, tmp_path / "report.html")
    script = POINT.replace('".curve"', '".seen .curve"').replace("[30]", "[2]")
    report.write_text(report.read_text().replace("</body>", f"{script}</body>"))
    dom, console = load(report, tmp_path / "profile")
    assert console == []
    tip = re.search(r'<div id="tip"[^>]*>([^<]*)</div>', dom).group(1)
    assert tip.splitlines()[:3] == [
        "demo, grown",
        "stage 2, 40 classes, 4,000 examples",
        "test accuracy: 75.00 ± 1.00 %",
    ]


def test_console_errors_would_be_seen(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html><script>nothing.here()</script>")
    assert len(load(page, tmp_path / "profile")[1]) == 1


# A page in a frame of that width: a window of the browser has at least 500 pixels.
FRAME = """<!DOCTYPE html><iframe width="WIDTH" height="3000" srcdoc="PAGE"></iframe><p id="found"></p><script>
onload = () => {
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  const out = [...page.querySelectorAll("section *")].filter(e =>
    !e.parentElement.closest(".scroll") && e.getBoundingClientRect().right > root.clientWidth + 1);
  const sizes = [...page.querySelectorAll(".chart text")].map(t => t.getBoundingClientRect().height);
  document.getElementById("found").textContent = JSON.stringify(
    [root.scrollWidth, out.map(e => e.outerHTML.slice(0, 80)), Math.min(...sizes.filter(s => s))]);
};
</script>"""


def measured(page: Path, width: int, profile: Path) -> list:
    """How wide a page is in a frame, what juts out of it, and how high the smallest text of a chart is."""
    framed = page.with_name(f"{page.stem}-{width}.html")
    text = html.escape(page.read_text(), quote=True)
    framed.write_text(FRAME.replace("WIDTH", str(width)).replace("PAGE", text))
    dom, _ = load(framed, profile)
    return json.loads(html.unescape(re.search(r'<p id="found">([^<]+)</p>', dom).group(1)))


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.each(2)
def test_nothing_juts_out_of_the_page(width, tmp_path):
    long = "a_rather_long_name_of_a_recipe_that_nobody_would_write_but_which_is_allowed"
    runs = [write_run(tmp_path / f"{seed}", seed=seed, name=long) for seed in range(2)]
    runs.append(write_run(tmp_path / "fixed", True, name=long, lr=0.2))
    runs.append(write_stream(tmp_path / "stream", "plain", 0))
    page = write_report(runs, tmp_path / "report.html", clock="cpu")
    found, jutting, text = measured(page, width, tmp_path / "profile")
    assert found <= width and jutting == [] and text > 8


def test_what_juts_out_would_be_seen(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html><section><p style='width:600px'>wide</p></section>")
    found, jutting, _ = measured(page, 400, tmp_path / "profile")
    assert found > 600 and len(jutting) == 1
