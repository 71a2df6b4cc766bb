"""The comparisons on growing data: python -m scripts.streams --data DIR [--out results] [--only classes] [--page].

ResNet-8 on 10,000 images of CIFAR-100 at 16×16, in nine stages: what a CPU can do with three seeds. Two ways,
growing and full size, are first trained at some learning rates, with a seed that the comparison does not have
(folder cifar100-stream-rates): the recipes have the rate that was best for both. Then all contenders are compared.
The same command goes on with what was stopped, and several processes may share a comparison. --page writes the
tables of docs/streams.md from the results.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from growthring.compare import Comparison, Contender, Standing, manifest_of
from growthring.compare.manifest import Manifest
from growthring.compare.standings import read_standings
from growthring.compare.verdict import verdicts
from growthring.files.atomic import write_bytes
from growthring.runs import RunFolder, Spread
from growthring.runs.results import read_result
from growthring.runs.run import read_run
from growthring.runs.spread import spread
from growthring.runs.stages import mean_over_stages, stage_means
from growthring.runs.values import number
from growthring.train import Recipe, Trainer, change
from growthring.train.recipes import RECIPES
from scripts.pays.tables import fill

STREAMS = {
    "classes": "cifar100-stream-classes-small",
    "data": "cifar100-stream-data-small",
}
CONTENDERS = ("fixed", "fixed-osgd", "paired", "osgd")
SEEN = Contender(
    "seen", {"stream_outputs": "seen"}, "growing, with outputs that come with the classes"
)
RATES = (0.1, 0.4, 0.8)
WAYS = {"grown": {}, "full size": {"fixed": True}}
TUNING_SEED = 10
PAGE = Path("docs/streams.md")


def recipe_of(stream: str) -> Recipe:
    return RECIPES[STREAMS[stream]]()


# Measuring.


def tune(stream: str, data: Path, out: Path) -> None:
    """Trains both ways at all rates, for the tuning seed."""
    for way, settings in WAYS.items():
        for lr in RATES:
            folder = rate_folder(out, stream, way, lr)
            if RunFolder(folder).is_finished:
                continue
            recipe = change(recipe_of(stream), {**settings, "lr": lr, "seed": TUNING_SEED})
            trainer = Trainer(recipe, folder, data=data, keep=1)
            if RunFolder(folder).is_run:
                trainer.resume()
            trainer.fit()


def rate_folder(out: Path, stream: str, way: str, lr: float) -> Path:
    return out / "cifar100-stream-rates" / f"{stream}-{way.replace(' ', '-')}-{lr:g}"


def compare(stream: str, data: Path, out: Path) -> None:
    """Trains all contenders."""
    contenders = [*CONTENDERS, *([SEEN] if stream == "classes" else [])]
    recipe, folder = recipe_of(stream), out / STREAMS[stream]
    Comparison(recipe, contenders, 3, folder, data=data, clock="cpu").run()


# The page.


def rates_table(out: Path) -> list[str]:
    """Test accuracy at each rate."""
    lines = [
        f"| stream | way | {' | '.join(f'rate {lr:g}' for lr in RATES)} |",
        f"| --- | --- |{' ---: |' * len(RATES)}",
    ]
    for stream in STREAMS:
        for way in WAYS:
            found = [read_result(rate_folder(out, stream, way, lr)) for lr in RATES]
            known = [number(result.get("test_accuracy")) for result in found]
            if any(value is not None for value in known):
                best = max(value for value in known if value is not None)
                cells = [_rate(value, best) for value in known]
                lines.append(f"| {stream} | {way} | {' | '.join(cells)} |")
    return lines


def _rate(value: float | None, best: float) -> str:
    if value is None:
        return "–"
    text = f"{100 * value:.1f}"
    return f"**{text}**" if value == best else text


def result_table(out: Path, stream: str) -> list[str]:
    """What each contender came to, and what it cost."""
    rows, manifest = _standings(out, stream)
    lines = [
        "| contender | epochs | accuracy % | mean over stages % | forgetting | FLOPs % | CPU seconds % | n |",
        f"| --- |{' ---: |' * 7}",
    ]
    for row in rows:
        runs = [read_run(out / STREAMS[stream] / folder) for folder in row.runs]
        length = "–" if row.length is None else str(row.length.count)
        cells = [
            *(row.name, length, _percent(row.accuracy, 2), _percent(mean_over_stages(runs), 2)),
            *(_percent(row.scores.get("test_forgetting"), 2), _percent(row.flops_share, 1)),
            *(_percent(row.seconds_share, 0), str(len(row.seeds))),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    told = [verdict.sentence(manifest.clock) for verdict in verdicts(rows, manifest)]
    return [*lines, "", *(f"- {sentence}" for sentence in (*told, *_gains(rows)))]


def _gains(rows: Sequence[Standing]) -> list[str]:
    """What dynamic OSGD does, paired by seed."""
    by_name = {row.name: row for row in rows}
    sentences = []
    pairs = (("osgd", "paired"), ("fixed-osgd", "fixed"), ("osgd", "fixed"), ("seen", "paired"))
    for ours, other in pairs:
        if ours not in by_name or other not in by_name:
            continue
        one, two = _by_seed(by_name[ours]), _by_seed(by_name[other])
        gain = spread(100 * (one[seed] - two[seed]) for seed in one if seed in two)
        if gain is not None:
            about = "" if gain.deviation is None else f" ± {gain.deviation:.2f}"
            sentences.append(f"{ours} − {other}: {gain.mean:+.2f}{about} points (paired by seed).")
    return sentences


def _by_seed(row: Standing) -> dict[int, float]:
    pairs = zip(row.seeds, row.values["test_accuracy"], strict=True)
    return {seed: value for seed, value in pairs if value is not None}


def stage_table(out: Path, stream: str) -> list[str]:
    """Accuracy at the end of each stage on the classes seen so far."""
    rows, _ = _standings(out, stream)
    means = {
        row.name: stage_means([read_run(out / STREAMS[stream] / folder) for folder in row.runs])
        for row in rows
        if row.runs
    }
    head = next(iter(means.values()), [])
    last = head[-1].examples if head else None
    is_classes = len({mean.classes for mean in head}) > 1
    titles = [
        f"{mean.classes} classes" if is_classes else f"{(mean.examples or 0) / (last or 1):.0%}"
        for mean in head
    ]
    lines = [f"| contender | {' | '.join(titles)} |", f"| --- |{' ---: |' * len(titles)}"]
    for name, stages in means.items():
        cells = [_percent(mean.accuracy, 1) for mean in stages]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _standings(out: Path, stream: str) -> tuple[list[Standing], Manifest]:
    folder = out / STREAMS[stream]
    manifest = manifest_of(folder)
    return [row for row in read_standings(folder, manifest) if row.seeds], manifest


def _percent(value: Spread | None, digits: int) -> str:
    return "–" if value is None else value.percent(digits).removesuffix(" %")


def tables(out: Path) -> dict[str, list[str]]:
    """All tables of the page, by name."""
    found = {"rates": rates_table(out)}
    for stream in STREAMS:
        found[f"{stream}-results"] = result_table(out, stream)
        found[f"{stream}-stages"] = stage_table(out, stream)
    return found


def write_page(out: Path) -> None:
    """Puts the tables in their places."""
    write_bytes(PAGE, fill(PAGE.read_text(encoding="utf-8"), tables(out)).encode())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--data", type=Path, help="folder with cifar-100-python")
    options.add_argument("--out", type=Path, default=Path("results"), help="default %(default)s")
    options.add_argument("--only", choices=STREAMS, help="one of the streams")
    options.add_argument("--page", action="store_true", help="write the page's tables")
    arguments = options.parse_args()
    if arguments.page:
        write_page(arguments.out)
        return
    if arguments.data is None:
        options.error("--data is needed to train.")
    for stream in [arguments.only] if arguments.only else STREAMS:
        tune(stream, arguments.data, arguments.out)
        compare(stream, arguments.data, arguments.out)


if __name__ == "__main__":
    main()
