"""Draws docs/rings.png: rate factors, weight norms and gradient norms of rings, from a run of the demo recipe.

python -m scripts.ring_figure [--out docs/rings.png]
"""

from __future__ import annotations

import argparse
import tempfile

import torch

import growthring as gr
from growthring.train import RECIPES, Trainer, change


def main() -> None:
    """Trains with rate adaptation under the shared schedule, as in the paper, and records one layer."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", default="docs/rings.png")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    recipe = change(RECIPES["demo"](), {"optimizer_options.ring_schedule": "shared"})
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(recipe, folder)
        recorder = gr.optim.RingRecorder(
            trainer.optimizer, every=3, names=["stages.1.0.conv2.weight", "stages.2.0.conv2.weight"]
        )
        trainer.fit()
        recorder.plot(arguments.out)


if __name__ == "__main__":
    main()
