"""docs/custom-operators.md does what it says: its code runs, and prints what stands below it."""

import contextlib
import io
import re
from pathlib import Path

import growthring as gr
from growthring.graph.rules.registry import RULES

PAGE = Path(__file__).parents[2] / "docs" / "custom-operators.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_page_runs_and_prints_what_it_shows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("```python") == 3  # none is left out
    namespace: dict[str, object] = {"__name__": "custom_operators"}
    try:
        for code, shown in blocks:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, str(PAGE), "exec"), namespace)
            assert printed.getvalue() == shown
    finally:
        RULES.pop("mylib.gated", None)


def test_every_verb_of_the_page_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in set(re.findall(r"walk\.(\w+)", text)):
        assert callable(getattr(gr.Walk, name))
    for name in set(re.findall(r"\bop\.(\w+)", text)) - {"outputs"}:
        assert callable(getattr(gr.Op, name))
    for name in set(re.findall(r"\bgr\.(\w+)", text)):
        assert hasattr(gr, name)
