"""Runs all benchmarks, each in a process of its own, and writes docs/benchmarks.md.

python -m benchmarks [--only discovery growth ...] [--repeats 5] [--output docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Table

NAMES = (
    "discovery",
    "growth",
    "methods",
    "optim",
    "osgd",
    "stages",
    "training",
    "tokens",
    "decoding",
    "compiling",
    "processes",
    "shards",
    "versus_gromo",
)


def main() -> None:
    """Runs, prints, writes."""
    options = argparse.ArgumentParser(
        description="Runs the benchmarks and writes docs/benchmarks.md."
    )
    options.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    options.add_argument("--repeats", type=int, help="default: each benchmark's own")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument(
        "--output",
        type=Path,
        help="default: docs/benchmarks.md, and nothing with --only; with it only their sections are written",
    )
    args = options.parse_args()
    given = ["--seed", str(args.seed), "--threads", str(args.threads)]
    if args.repeats is not None:
        given += ["--repeats", str(args.repeats)]
    results = []
    for name in args.only:
        print(f"== {name} ...", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *given]
        process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        results.append(json.loads(process.stdout))
        for table in results[-1]["tables"]:
            print(f"\n{Table(**table).text()}")
        print()
    output = args.output or (ROOT / "docs" / "benchmarks.md" if args.only is NAMES else None)
    if output is not None:
        is_part = args.only is not NAMES and output.exists()
        output.write_text(replaced(output.read_text(), results) if is_part else page(results))
        print(f"wrote {output}")


def page(results: list[dict[str, Any]]) -> str:
    """The results as a page of Markdown."""
    settings = results[0]["settings"]
    repeats = ", ".join(f"{r['title']} {r['settings']['repeats']}" for r in results)
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench` (`python -m benchmarks`); do not edit. Every ratio compares two things",
        "measured in turns in one process, so it means more than the seconds do: the machine was shared.",
        "Numbers are medians ± the median absolute deviation over the repeats.",
        "",
        f"- machine: {settings['machine']}; torch threads: {settings['threads']}",
        f"- versions: {settings['versions']}, growthring at {settings['growthring']}",
        f"- seed {settings['seed']}; repeats: {repeats}",
    ]
    return "\n".join(lines) + "\n" + "".join(section(result) for result in results)


def section(result: dict[str, Any], *more: str) -> str:
    """What one benchmark found, and more lines about it."""
    lines = ["", f"## {result['title']}", "", result["about"], *more]
    for table in result["tables"]:
        lines += ["", Table(**table).markdown()]
    return "\n".join(lines) + "\n"


def replaced(page: str, results: list[dict[str, Any]]) -> str:
    """A page with new sections in place of those of the same titles, or at its end; each says of what they are."""
    for result in results:
        settings = result["settings"]
        code = f"growthring at {settings['growthring']}"
        when = (
            f"Measured by itself, {code}, {settings['repeats']} repeats, on {settings['machine']}."
        )
        head, *sections = page.split("\n## ")
        own = section(result, "", when).removeprefix("\n## ").rstrip("\n")
        titles = [text.partition("\n")[0] for text in sections]
        if result["title"] in titles:
            sections[titles.index(result["title"])] = own + "\n"
        else:
            sections.append(own)
        page = "\n## ".join([head.rstrip("\n") + "\n", *(s.rstrip("\n") + "\n" for s in sections)])
    return page


if __name__ == "__main__":
    main()
