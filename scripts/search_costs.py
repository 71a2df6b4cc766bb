"""What the searching methods add to the cost of the paper's ResNet-20, beside what the paper says they add.

python -m scripts.search_costs            # writes docs/search-costs.md; a minute

Nothing is trained: each growth of the recipe's plan is searched for on a few random images, and the FLOPs that
torch counts are taken for as many examples as the method's defaults search on (one pass, and a quarter to score).
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch.nn import functional

import growthring as gr
from growthring.methods import METHODS, Growth, Job, Step
from growthring.train import RECIPES
from growthring.train.setup import make_model, make_plan

PUBLISHED = {"net2net": 54.90, "firefly-split": 58.47, "firefly": 68.96, "splitting": 70.69}
EXAMPLES, BATCH = 50_000, 8
PAGE = Path(__file__).resolve().parent.parent / "docs" / "search-costs.md"


def search_flops(method: str, model: torch.nn.Module, step: Step) -> float:
    """FLOPs of one growth's search over a data set of EXAMPLES."""

    def flops(**options: int) -> Growth:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(BATCH, 3, 32, 32, generator=generator)
        labels = torch.randint(10, (BATCH,), generator=generator)
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        job = Job(step, model, tensors, generator, [(images, labels)], functional.cross_entropy)
        return METHODS[method](**options).grow(job)

    if method == "gradmax":
        found = flops(examples=BATCH).cost
        return found.flops / found.examples * METHODS[method]().examples  # type: ignore[attr-defined]
    both, more = flops(steps=1, score_steps=1).cost.flops, flops(steps=2, score_steps=1).cost.flops
    search, score = (more - both) / BATCH, (2 * both - more) / BATCH
    steps = math.ceil(EXAMPLES / 128)
    return EXAMPLES * search + 128 * (steps // 4) * score


def main() -> None:
    """Counts and writes the page."""
    torch.set_num_threads(1)
    recipe = RECIPES["cifar10-resnet20"]()
    plan = make_plan(recipe, make_model(recipe, torch.Generator().manual_seed(0)))
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    searching = [name for name, method in METHODS.items() if method.searches]
    spent = dict.fromkeys(searching, 0.0)
    while not grower.is_full:
        widths = plan.stage_widths
        step = Step(plan, widths[grower.stage], widths[grower.stage + 1], "off")
        for name in searching:
            spent[name] += search_flops(name, model, step)
        grower.grow(measure=False)
    full = 3 * plan.footprints[-1].flops * EXAMPLES * sum(plan.epochs)
    lines = [
        "# What searching costs",
        "",
        "Written by `python -m scripts.search_costs`; do not edit. ResNet-20, CIFAR-10, 160 epochs, nine stages: "
        "FLOPs of training and of the methods' own search, in % of fixed-size training. Counted, not trained: "
        "one pass over 50,000 examples for each of eight growths and a quarter of one to score (GradMax: "
        "512 examples).",
        "",
        "| method | training % | search % | total % | the paper's % | of that, beyond its Net2Net |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in METHODS:
        share = 100 * spent.get(name, 0.0) / full
        paper = PUBLISHED.get(name)
        stated = "–" if paper is None else f"{paper:.2f}"
        extra = "–" if paper is None else f"{paper - PUBLISHED['net2net']:.2f}"
        base = 100 * plan.flops_share
        lines.append(
            f"| {name} | {base:.2f} | {share:.2f} | {base + share:.2f} | {stated} | {extra} |"
        )
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines[5:]))


if __name__ == "__main__":
    main()
