"""Beam search and generation with a cache of keys and values, against the whole prefix at each step.

    python -m benchmarks.decoding [--repeats 5] [--json]

Both give the same tokens: it is checked. Models have random weights: what a step costs does not depend on them.
"""

from __future__ import annotations

import argparse
import functools
import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import measure as bench
from benchmarks.measure import Sample, Table
from growthring import zoo
from growthring.decoding.language import generate
from growthring.decoding.translation import beam_search

VOCABULARY, SOURCE, LENGTH = 4000, 20, 20  # tokens; 20 of a translation at the most
PAD, BOS, EOS = 0, 1, 2


def in_turns(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Sample]:
    """Processor seconds of ways to do the same, after a first try of each that has to give the same."""
    first, *others = [way() for way in ways.values()]
    assert all(other == first for other in others), "the ways differ in what they give"
    times: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(repeats):
        for name in list(ways) if i % 2 else list(ways)[::-1]:
            gc.collect()
            started = time.process_time()
            ways[name]()
            times[name].append(time.process_time() - started)
    return {name: Sample(tuple(values)) for name, values in times.items()}


class Ratios:
    """A table of what a cache saves, and its numbers."""

    def __init__(self, title: str, header: list[str]) -> None:
        heads = [*header, "tokens", "without, ms", "with cache, ms", "times as fast"]
        self.table, self.data = Table(title, heads), dict[str, Any]()

    def add(self, row: list[str], tokens: int, with_cache: Callable[..., Any], n: int) -> None:
        """Measures one case."""
        found = in_turns(
            {
                name: functools.partial(with_cache, use_cache=name == "with")
                for name in ("without", "with")
            },
            n,
        )
        faster = bench.ratio(found["without"], found["with"])
        shown = [bench.show(found[name], 1e3, 1) for name in ("without", "with")]
        self.table.rows.append([*row, f"{tokens}", *shown, f"**{faster.show(1)}**"])
        self.data[", ".join(row)] = {
            "without": found["without"].as_dict(),
            "with": found["with"].as_dict(),
            "faster": faster.as_dict(),
        }


def _translate(model: nn.Module, source: Tensor, beam: int, use_cache: bool) -> list[list[int]]:
    options: dict[str, Any] = {"beam": beam, "max_length": LENGTH, "use_cache": use_cache}
    found = beam_search(model, source, bos=BOS, eos=EOS, pad=PAD, **options)
    return [one.tokens for one in found]


def _go_on(model: nn.Module, prompt: Tensor, count: int, seed: int, use_cache: bool) -> list[int]:
    draw = torch.Generator().manual_seed(seed)
    return list(generate(model, prompt, num_tokens=count, generator=draw, use_cache=use_cache))


def measure_translation(args: argparse.Namespace) -> Ratios:
    """Two Transformers, one sentence and 32, one beam and four."""
    ratios = Ratios("Translation by beam search", ["Transformer", "sentences", "beam"])
    for width, blocks in ((128, 2), (256, 3)):
        generator = torch.Generator().manual_seed(args.seed)
        model = zoo.Transformer(
            VOCABULARY,
            VOCABULARY,
            d_model=width,
            d_embed=width,
            num_encoder_layers=blocks,
            num_decoder_layers=blocks,
            max_length=256,
            generator=generator,
        ).eval()
        for sentences in (1, 32):
            shape = (sentences, SOURCE)
            source = torch.randint(EOS + 1, VOCABULARY, shape, generator=generator)
            source[:, -1] = EOS
            for beam in (1, 4):
                translate = functools.partial(_translate, model, source, beam)
                tokens = sum(len(one) for one in translate(use_cache=True))
                row = [f"width {width}, {blocks} + {blocks} blocks", f"{sentences}", f"{beam}"]
                ratios.add(row, tokens, translate, args.repeats)
    return ratios


def measure_generation(args: argparse.Namespace) -> Ratios:
    """Two GPTs, up to their context."""
    ratios = Ratios("Text from a GPT, token by token", ["GPT", "prompt"])
    for width, blocks, context in ((128, 2, 64), (256, 4, 256)):
        generator = torch.Generator().manual_seed(args.seed)
        sizes = {"num_layers": blocks, "num_heads": 8, "width": width}
        model = zoo.GPT(256, context, generator=generator, **sizes).eval()  # type: ignore[arg-type]
        prompt = torch.randint(256, (8,), generator=generator)
        count = context - len(prompt)

        go_on = functools.partial(_go_on, model, prompt, count, args.seed)
        row = [f"width {width}, {blocks} blocks, context {context}", f"{len(prompt)}"]
        ratios.add(row, count, go_on, args.repeats)
    return ratios


def run(args: argparse.Namespace) -> bench.Result:
    """Times all of it."""
    parts = [measure_translation(args), measure_generation(args)]
    parts[0].table.notes += [
        "tokens: of all translations together; the search goes on for as long as any of its sentences does."
    ]
    about = (
        f"`decoding.beam_search` and `decoding.generate` with `use_cache=True` and `False`, in turns, in processor "
        f"time. Both give the same tokens. Random weights, {VOCABULARY:,} tokens (GPT: 256), sources of {SOURCE} "
        f"tokens, translations of up to {LENGTH}."
    )
    data = {part.table.title: part.data for part in parts}
    return bench.Result("Beam search", about, [part.table for part in parts], data)


if __name__ == "__main__":
    options = bench.parser("Compares decoding with and without a cache.", repeats=5)
    bench.main(run, options)
