"""`make demo`: trains the embedded digits by growing and at full size, and compares the two."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from growthring.html import format_table, summary_table, write_report
from growthring.train import RECIPES, Trainer, change


def main() -> None:
    """Runs both trainings (or goes on with them), prints a table and writes a report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=Path("runs/demo"), help="default runs/demo")
    options.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    arguments = options.parse_args()
    recipe = change(RECIPES["demo"](), arguments.settings)
    folders = []
    for is_fixed in (False, True):
        folder = arguments.out / ("fixed-size" if is_fixed else "grown")
        folders.append(folder)
        trainer = Trainer(dataclasses.replace(recipe, fixed=is_fixed), folder)
        if (folder / "config.json").exists():
            trainer.resume()
        elif not is_fixed:
            trainer.progress.say(f"{trainer.plan}\n")
        trainer.progress.say("growing:" if not is_fixed else "full size from the start:")
        trainer.fit()
    page = arguments.out / "report.html"
    write_report(folders, page, title="growthring demo")
    print(
        f"\n{format_table(summary_table(folders))}\n\nReport with curves, stages and rates: {page}"
    )


if __name__ == "__main__":
    main()
