"""Tokens per second of a Trainer and of a bare torch loop on the same batches.

    python -m benchmarks.tokens [--repeats 12] [--json]

Each repeat is a stretch of some steps by the trainer and the same steps by the loop, right after each other, in
processor time. Both begin with the same weights and, where nothing fades, end with the same ones: it is checked.
"""

from __future__ import annotations

import argparse
import gc
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import growthring as gr
from benchmarks import measure as bench
from benchmarks.measure import Sample, Table
from benchmarks.turns import LOG_RATES, EnoughError, fit_until_enough
from growthring import train
from growthring.data import SentenceBatches
from growthring.data.pairs import Pairs
from growthring.data.sentences import IGNORED, Ragged, SentenceData
from growthring.data.vocabulary import BOS, EOS, train_vocabulary
from growthring.train.shapes import ShapeCosts
from growthring.train.tasks import Place, Streams, Translation

TARGET, WARM_UP = 0.03, 2
STRETCH = 0.6  # seconds of a stretch at the most, and never fewer than two steps
OPTIMIZERS: dict[str, dict[str, Callable[..., torch.optim.Optimizer]]] = {
    "gr.optim": {"adam": gr.optim.Adam, "adamw": gr.optim.AdamW},
    "torch.optim": {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW},
}


class Captions(Translation):
    """Random tokens in sentences as long as those of Multi30k in 4,000 subwords: 18 and 17 on the average."""

    tokens = 4000

    def streams(self, recipe: train.Recipe, generator: torch.Generator, place: Place) -> Streams:
        """The same sentences for training and testing."""
        draw = torch.Generator().manual_seed(0)
        lengths = (17 + 5 * torch.randn(4000, generator=draw)).round().clamp(5, 40)
        other = (lengths - 1 + 2 * torch.randn(4000, generator=draw)).round().clamp(5, 40)

        def sentence(length: float) -> list[int]:
            return torch.randint(EOS + 1, self.tokens, (int(length),), generator=draw).tolist()

        sources = Ragged.of([[*sentence(n), EOS] for n in lengths.tolist()])
        targets = Ragged.of([[BOS, *sentence(n), EOS] for n in other.tolist()])
        words = ["noise"] * len(lengths)
        vocabulary = train_vocabulary(words, 300)  # only its name matters
        pairs = Pairs("noise", words, words)
        data = SentenceData("noise", sources, targets, pairs, vocabulary, max_length=64)
        size = recipe.batch_size
        return Streams(SentenceBatches(data, size, generator), SentenceBatches(data, size, None))


@dataclass(frozen=True)
class Case:
    """A recipe to train by, and what it is called."""

    name: str
    recipe: train.Recipe


def cases() -> list[Case]:
    """Two GPTs and two Transformers, with runs so long that no stage ends."""
    gpt = train.RECIPES["python-gpt"]()
    wide = {"model_options.width": 256, "model_options.num_layers": 4}
    numbers = train.RECIPES["numbers-transformer"]()
    captions = train.change(train.RECIPES["multi30k-transformer"](), {"task": Captions()})
    found = {
        "GPT, 2 blocks, width 128 (python-gpt)": gpt,
        "GPT, 4 blocks, width 256": train.change(gpt, wide),
        "Transformer, width 64, 320 tokens (numbers-transformer)": numbers,
        "Transformer, width 128, 4,000 tokens (as multi30k-transformer)": captions,
    }
    long = {"epochs": 1000, "warmup_steps": 0, "lr_schedule": "constant", "lr": 1e-4}
    return [Case(name, train.change(recipe, long)) for name, recipe in found.items()]


class Race:
    """The stream of a trainer. After each stretch of the trainer's a bare loop takes the same steps, or before it.

    Args:
        trainer: has not begun.
        kind: the optimizer of the bare loop.
        stretches: how many are timed.
    """

    def __init__(
        self, trainer: train.Trainer, kind: Callable[..., torch.optim.Optimizer], stretches: int
    ) -> None:
        self.trainer, self.recipe, self.stretches = trainer, trainer.recipe, stretches
        self.stream, self.loss = trainer.train, trainer.loss
        self.model = trainer.plan.empty_model(trainer.totals.stage).train()
        own = dict(trainer.model.named_parameters())
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(own[name])
        options = self.recipe.optimizer_options
        self.optimizer = kind(self.model.parameters(), lr=self.recipe.lr, **options)
        self.times: dict[str, list[float]] = {"load": [], "trainer": [], "bare": [], "tokens": []}
        self.steps = 2
        self.counts: list[float] = []  # seconds of each shape whose FLOPs were counted

    def run(self) -> Race:
        """Both, to the last stretch."""
        count = ShapeCosts._count

        def timed(costs: ShapeCosts, batch: Any) -> float:
            started = time.process_time()
            flops = count(costs, batch)
            self.counts.append(time.process_time() - started)
            return flops

        with (
            mock.patch.object(self.trainer, "train", self),
            mock.patch.object(ShapeCosts, "_count", timed),
        ):
            self.trainer._log_rates = 0
            fit_until_enough(self.trainer)
        return self

    def sample(self, name: str) -> Sample:
        """Of the stretches after the first ones."""
        return Sample(tuple(self.times[name][WARM_UP:]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __iter__(self) -> Iterator[Any]:
        batches = self._forever()
        random = dict.fromkeys(("trainer", "bare"), torch.get_rng_state())
        for i in range(WARM_UP + self.stretches):
            started = time.process_time()
            stretch = [next(batches) for _ in range(self.steps)]
            self.times["load"].append(time.process_time() - started)
            for name in ("trainer", "bare") if i % 2 else ("bare", "trainer"):
                gc.collect()
                torch.set_rng_state(random[name])
                before, started = sum(self.counts), time.process_time()
                if name == "trainer":
                    yield from stretch
                else:
                    for inputs, targets in stretch:
                        self._step(inputs, targets)
                spent = time.process_time() - started - (sum(self.counts) - before)
                self.times[name].append(spent)
                random[name] = torch.get_rng_state()
            self.times["tokens"].append(sum(int((t != IGNORED).sum()) for _, t in stretch))
            self.times["trainer"][-1] += self._record() * self.steps / LOG_RATES
            if i < WARM_UP:  # the first stretch also says how long the others are
                self.steps = max(2, min(25, int(STRETCH * self.steps / self.times["bare"][-1])))
        raise EnoughError

    def _step(self, inputs: Any, targets: Tensor) -> None:
        """As in a loop of one's own."""
        outputs = self.model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
        loss = nn.functional.cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), label_smoothing=self.recipe.label_smoothing
        )
        self.optimizer.zero_grad()
        loss.backward()
        if self.recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)
        self.optimizer.step()

    def _record(self) -> float:
        """Seconds of the record of rates, which a trainer writes after some of its steps."""
        started = time.process_time()
        if self.trainer.rings is not None:
            self.trainer.account.rates(self.trainer.rings)
        return time.process_time() - started

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self.stream


def race(case: Case, stage: str, library: str, args: argparse.Namespace) -> Race:
    """A trainer against a bare loop, at the first stage, or at full size with or without fading norms."""
    kind = OPTIMIZERS[library][case.recipe.plan.optimizer]

    def make(recipe: train.Recipe, model: nn.Module, total_steps: int) -> torch.optim.Optimizer:
        return kind(model.parameters(), lr=recipe.lr, **recipe.optimizer_options)

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("growthring.train.parts.make_optimizer", make),
    ):
        progress = train.Progress(io.StringIO(), is_live=True)
        recipe = train.change(case.recipe, {"seed": args.seed})
        trainer = train.Trainer(recipe, folder, progress=progress)
        grower = trainer.grower
        assert grower is not None
        while stage != "seed" and not grower.is_full:
            grower.finish()
            grower.grow(measure=False)
        trainer.totals.stage = grower.stage
        if stage != "fading":
            grower.finish()
        found = Race(trainer, kind, args.repeats).run()
        assert bool(grower.fading_norms) == (stage == "fading")
        if stage != "fading":
            own = dict(trainer.model.named_parameters())
            assert all(torch.equal(p, own[n]) for n, p in found.model.named_parameters()), case.name
    return found


def compare(args: argparse.Namespace) -> tuple[list[Table], dict[str, Any]]:
    """All cases, with both libraries' optimizers; while norms fade with ours."""
    heads = ["network", "stage", "optimizer", "bare loop, tokens/s", "trainer, tokens/s"]
    steady = Table("While nothing fades", [*heads, "trainer takes longer by", "target", "verdict"])
    fading = Table("While norms fade, against the same model without", [*heads, "takes longer by"])
    heads = ["network", "batch, ms", "share of a bare step", "shapes counted", "seconds for them"]
    once = Table("Beside steps: making a batch, and counting the FLOPs of new shapes", heads)
    data: dict[str, Any] = {}
    for case in cases():
        for stage, library in (
            ("seed", "gr.optim"),
            ("full size", "gr.optim"),
            ("full size", "torch.optim"),
            ("fading", "gr.optim"),
        ):
            found = race(case, stage, library, args)
            bare, ours, tokens = (found.sample(n) for n in ("bare", "trainer", "tokens"))
            more = Sample(tuple(r - 1 for r in bench.ratio(ours, bare).values))
            rates = [bench.ratio(tokens, each) for each in (bare, ours)]
            name = f"{library}.{found.optimizer.__class__.__name__}"
            shown = [f"{rate.median:,.0f} ± {rate.deviation:,.0f}" for rate in rates]
            percent = f"**{bench.show(more, 100, 1)} %**"
            place = "full size" if stage == "fading" else stage
            row = [case.name, place, name, *shown, percent]
            if stage == "fading":
                fading.rows.append(row)
            else:
                steady.rows.append([*row, *bench.verdict(more, TARGET)])
            samples = {"bare": bare, "trainer": ours, "tokens": tokens, "longer": more}
            data[f"{case.name}, {stage}, {library}"] = {k: s.as_dict() for k, s in samples.items()}
            if stage == "full size" and library == "gr.optim":
                load = Sample(tuple(v / found.steps for v in found.sample("load").values))
                share = bench.ratio(found.sample("load"), bare)
                counts = [f"{len(found.counts)}", f"{sum(found.counts):.2f}"]
                once.rows.append([case.name, bench.show(load, 1e3, 2), share.show(4), *counts])
                data[f"{case.name}, loading"] = {
                    "seconds": load.as_dict(),
                    "share": share.as_dict(),
                    "counts": found.counts,
                }
    once.notes += [
        "Shapes are counted at the start of a stage, a few of each network; the FLOPs of others follow from these."
    ]
    return [steady, fading, once], data


def run(args: argparse.Namespace) -> bench.Result:
    """Times all of it."""
    tables, data = compare(args)
    tables[0].notes += [
        "trainer: all of it but evaluations and checkpoints: loss and right answers summed, FLOPs counted, a live "
        "line of progress, the record of rates. Counting new shapes is apart, below.",
        "The weights of both are the same at the end, bit for bit.",
    ]
    about = (
        "`train.Trainer` and a bare torch loop (forward, loss, backward, clipping where the recipe clips, step) "
        "take the same steps on the same batches, in turns, in processor time; the optimizer is the same in both. "
        "Batches of the GPTs: 16 × 64 bytes; of the Transformers: 64 sentences, generated number words or random "
        "tokens as long as captions."
    )
    return bench.Result("Tokens per second", about, tables, data)


def _options() -> argparse.ArgumentParser:
    return bench.parser("Compares a trainer's tokens per second with a bare loop's.", repeats=12)


if __name__ == "__main__":
    bench.main(run, _options())
