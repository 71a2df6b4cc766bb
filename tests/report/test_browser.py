"""The page in a real browser, where there is one."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from growthring.report import write_report
from tests.runs.samples import write_run

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
    assert len(re.findall(r'<path [^>]*class="curve[ "]', dom)) == 2 * 4 + 8 * 7
    assert len(re.findall(r'<svg class="(chart|stages)', dom)) == 4 + 7 + 1
    for words in ("52.9 %", "demo, fixed-size", "Stages of demo, grown", "ring 7", "7 growths"):
        assert words in dom
    tip = re.search(r'<div id="tip"[^>]*>([^<]*)</div>', dom)
    assert tip and "hidden" not in tip.group(0)
    label, value, place = tip.group(1).splitlines()
    assert label == "demo, grown" and place.strip() == "epochs: 31"
    assert re.fullmatch(r"test accuracy: 9\d\.\d+ %", value)
    assert 'class="curve near"' in dom


def test_console_errors_would_be_seen(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html><script>nothing.here()</script>")
    assert len(load(page, tmp_path / "profile")[1]) == 1
