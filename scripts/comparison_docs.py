"""Copies the tables of results/ into the pages of docs/ that have their markers.

python -m scripts.comparison_docs

The results themselves are made by `growthring compare` and by scripts/translation.py, as the pages say.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "docs" / "comparing.md", ROOT / "docs" / "translation.md"]


def main() -> None:
    """Rewrites what is between <!-- NAME --> (of table.md) or <!-- NAME/FILE --> and <!-- end -->."""

    def filled(match: re.Match[str]) -> str:
        name = match.group(1)
        file = f"{name}.md" if "/" in name else f"{name}/table.md"
        table = (ROOT / "results" / file).read_text(encoding="utf-8")
        body = table.split("\n", 2)[2].strip()  # without its title
        return f"<!-- {name} -->\n{body}\n<!-- end -->"

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found = re.sub(r"<!-- ([\w/-]+) -->\n.*?<!-- end -->", filled, text, flags=re.DOTALL)
        page.write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()
