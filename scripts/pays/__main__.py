"""Runs cells: python -m scripts.pays --data DIR [--cells tune main …] [--tasks gpt …] [--out results/pays]

Every run writes one file as soon as it is done; runs whose file exists are skipped, and several processes may
share the work.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from scripts.pays.cells import CELLS, MAIN, SETTINGS, Results
from scripts.pays.run import run_once


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/pays"))
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--tasks", nargs="+", default=list(MAIN), choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    results = Results(args.out, args.data)
    for cell in args.cells:
        for task in args.tasks:
            waiting = True
            while waiting:  # another process may be at work on what this cell needs
                waiting = False
                for run in CELLS[cell](SETTINGS[task], results, args.seeds):
                    if run is None:
                        waiting = True
                        continue
                    if results.find(run) is not None:
                        continue
                    result = run_once(run, args.data, args.out)
                    if not result:
                        continue  # somebody else is at it
                    print(
                        f"{cell} {run} -> {result['loss']:.4f} {result['cpu_seconds']:.0f} s",
                        flush=True,
                    )
                if waiting:
                    time.sleep(5)


if __name__ == "__main__":
    main()
