"""docs/training.md, "Your own data": its code runs, and prints what stands below it."""

import contextlib
import io
import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_your_own_data_runs_and_prints_what_it_shows(tmp_path):
    text = PAGE.read_text(encoding="utf-8").split("\n## Your own data\n")[1].split("\n## ")[0]
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("```python") == 2  # none is left out
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": "own_data", "RUN": str(tmp_path / "run")}
    for code, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(code, str(PAGE), "exec"), namespace)
        assert printed.getvalue() == shown
