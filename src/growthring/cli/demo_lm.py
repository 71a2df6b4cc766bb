"""`make demo-lm`: a small GPT learns Python from Python's own sources by growing, and then goes on with "def ".

Each line of the training has the perplexity of what was held out, and the cost up to there.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from growthring.cli import main as growthring
from growthring.cli.demo import GROWN
from growthring.runs import RunFolder

# A hundred steps to an epoch; growing at the rate that was best for it in `make demo`.
_LONGER = (
    "num_train=1600",
    "epochs=24",
    *(f"{key}={value}" for key, value in GROWN.settings.items()),
)


def main() -> int:
    """Trains (or goes on with it), writes a report and prints a text; returns the exit status of what failed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--out", type=Path, default=Path("runs/demo-lm"), help="default %(default)s"
    )
    options.add_argument("--prompt", default="def ", help="default '%(default)s'")
    options.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    arguments = options.parse_args()
    out = arguments.out
    if RunFolder(out).is_run:
        train = ["train", "--resume", str(out)]
    else:
        settings = [part for one in (*_LONGER, *arguments.settings) for part in ("--set", one)]
        train = ["train", "--recipe", "python-gpt", "--out", str(out), *settings]
    report = ["report", str(out), "--out", str(out / "report.html")]
    for command in (train, report, ["generate", str(out), arguments.prompt]):
        print(f"$ growthring {shlex.join(command)}", flush=True)
        if status := growthring(command):
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
