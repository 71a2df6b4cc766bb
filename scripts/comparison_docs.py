"""Copies the tables of results/ into docs/comparing.md, between their markers.

python -m scripts.comparison_docs

The results themselves are made by `growthring compare`, as docs/comparing.md says.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "comparing.md"


def main() -> None:
    """Rewrites what is between <!-- NAME --> and <!-- end -->."""
    page = PAGE.read_text(encoding="utf-8")

    def filled(match: re.Match[str]) -> str:
        name = match.group(1)
        table = (ROOT / "results" / name / "table.md").read_text(encoding="utf-8")
        body = table.split("\n", 2)[2].strip()  # without its title
        return f"<!-- {name} -->\n{body}\n<!-- end -->"

    found = re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", filled, page, flags=re.DOTALL)
    PAGE.write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()
