"""`make demo-translate`: a small Transformer that learns to translate German number words, by growing.

A second call goes on with a run that was stopped, or shows the one that is finished.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from growthring.cli import main as growthring
from growthring.files.foreign import shown
from growthring.report import write_report
from growthring.runs import RunFolder
from growthring.runs.samples import sample_lines
from growthring.runs.summary import format_table, summary_table
from growthring.train import RECIPES, Progress, Trainer, change, parse_settings

NAME = "numbers-transformer"
# Nine of ten numbers that it learns from have four digits: of short ones it has seen few.
NUMBERS = ("siebenundvierzig", "neunhunderteins", "eintausendachthundertsechsundsechzig")


def main() -> None:
    """Trains (or goes on), prints BLEU and samples, translates some numbers, and writes a report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=Path("runs/demo-translate"))
    options.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    arguments = options.parse_args()
    out, progress = arguments.out, Progress()
    recipe = change(RECIPES[NAME](), parse_settings(arguments.settings))
    source = {"recipe": NAME, "settings": arguments.settings, "fixed": False, "data": None}
    trainer = Trainer(recipe, out, progress=progress, source=source)
    if RunFolder(out).is_run:
        trainer.resume()
    else:
        progress.say(str(trainer.plan))
    result = trainer.fit()
    print(f"\n{format_table(summary_table([out]))}\n")
    for line in (*result.notes, *sample_lines(out)):
        print(shown(line))
    print(f"\n$ growthring translate {out} {' '.join(NUMBERS)}", flush=True)
    growthring(["translate", str(out), *NUMBERS])
    page = write_report([out], out / "report.html", "growthring demo-translate")
    print(f"\nCurves, stages and samples: {page}")


if __name__ == "__main__":
    main()
