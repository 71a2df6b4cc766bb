"""docs/translation.md: its code runs, and prints what stands below it."""

import contextlib
import io
from pathlib import Path

import torch

from growthring.train.tasks import TASKS
from tests.train.test_docs import BLOCK

PAGE = Path(__file__).parents[2] / "docs" / "translation.md"


def test_the_page_runs_and_prints_what_it_shows(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("```python") == 2  # none is left out
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": "translation", "RUN": str(tmp_path)}
    for code, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(code, str(PAGE), "exec"), namespace)
        assert printed.getvalue() == shown


def test_all_options_and_layouts_are_in_its_tables():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in TASKS["translation"].options)
    assert all(f"`{name}`" in text or name == "numbers" for name in TASKS["translation"].data)
