"""What the documentation points at is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_links_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|scripts|benchmarks|docs)/[\w./-]+)`", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    linked = re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)", text)
    missing += [name for name in linked if not (page.parent / name).exists()]
    assert not missing


def test_the_rooms_of_the_architecture_are_those_of_the_source() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "growthring"
    rooms = {folder.name for folder in source.iterdir() if (folder / "__init__.py").exists()}
    drawn = text.split("```")[1]
    assert set(re.findall(r"\b(\w+)/", drawn)) == rooms
    for room, described in re.findall(r"^\*\*(\w+)/\*\*(.*?)(?=^\*\*|^## )", text, re.M | re.S):
        files = {path.stem for path in (source / room).iterdir()}
        for name in re.findall(r"`([a-z_0-9]+)`", described):
            assert name in files or "_" in name, f"{room}/{name}"
