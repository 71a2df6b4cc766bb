"""`make demo`: a small GPT on Python's own sources, by growing, at full size, and at full size for growing's cost.

Each way has the best of the learning rates 1e-3, 2e-3 and 4e-3 that were tried for it: a narrow network bears a
higher one. Seconds are those of the processor, as other programs may run beside the demo.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from growthring.compare import Comparison, Contender, format_table, manifest_of, notes
from growthring.report import write_report
from growthring.train import RECIPES, Progress, change, parse_settings

GROWN = Contender("grown", {"lr": 4e-3}, "growing, at the rate that is best for it")


def main() -> None:
    """Runs the trainings (or goes on with them), prints a table and writes a report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=Path("runs/demo"), help="default runs/demo")
    options.add_argument("--seeds", type=int, default=1, help="default 1")
    options.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    arguments = options.parse_args()
    out, progress = arguments.out, Progress()
    recipe = change(RECIPES["python-gpt"](), parse_settings(arguments.settings))
    source = {"recipe": "python-gpt", "settings": arguments.settings, "data": None}
    rows = Comparison(
        recipe,
        [GROWN],
        arguments.seeds,
        out,
        clock="cpu",
        log_rates=50,
        progress=progress,
        source=source,
    ).run()
    manifest = manifest_of(out)
    print(f"\n{format_table(rows, manifest.clock)}\n")
    print("\n".join(notes(rows, manifest)))
    runs = out / "runs.html"
    write_report([out / "grown" / "seed-0", out / "fixed" / "seed-0"], runs, "growthring demo")
    print(f"\nPerplexity against cost, and curves: {out / 'report.html'}\nStages and rates: {runs}")


if __name__ == "__main__":
    main()
