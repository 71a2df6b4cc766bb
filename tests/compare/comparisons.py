"""Comparisons of seconds: a tiny recipe, clocks that count steps, folders as they were."""

from pathlib import Path

import pytest

from growthring.compare import Comparison, Standing
from growthring.compare.manifest import Entry, Manifest
from growthring.planning.lengths import Length
from growthring.runs import Spread
from growthring.train import Silence
from growthring.train.memory import PeakMemory
from growthring.train.state import Clock
from tests.train.runs import small


def compare(out, contenders=("paired", "vt"), seeds=1, settings=(), **options):
    options.setdefault("progress", Silence())
    return Comparison(small(*settings), contenders, seeds, out, **options)


def counted_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second per step and per growth, and constant memory: costs that are the same every time."""

    def add_to(clock, totals):
        totals.seconds += 1.0
        totals.cpu_seconds += 2.0

    monkeypatch.setattr(Clock, "add_to", add_to)
    monkeypatch.setattr(PeakMemory, "read", lambda memory: 1_000_000)


class Titles(Silence):
    """Notes which runs are trained; does something in the middle of one of them."""

    def __init__(self, name: str = "", act=lambda: None) -> None:
        super().__init__()
        self.said: list[str] = []
        self._name, self._act = name, act

    @property
    def trained(self) -> list[str]:
        return [line.split(": ")[1] for line in self.said if line.startswith("run ")]

    def say(self, text: str) -> None:
        self.said.append(text)

    def step(self, status) -> None:
        if status.step == 4 and self.trained[-1] == self._name:
            self._act()


def snapshot(out: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of every run: when it was written and what is in it."""
    files = [path for path in out.glob("*/seed-*/**/*") if path.is_file()]
    return {str(p.relative_to(out)): (p.stat().st_mtime_ns, p.read_bytes()) for p in files}


def row(
    name="paired", accuracy=0.978, deviation=None, flops=0.5, seconds=0.6, **changes
) -> Standing:
    """A row of three seeds."""
    values = {
        "name": name,
        "text": "",
        "settings": (),
        "fixed": name.startswith("fixed"),
        "length": Length(30, "epochs"),
        "asked": 3,
        "seeds": (0, 1, 2),
        "runs": tuple(f"{name}/seed-{seed}" for seed in range(3)),
        "accuracy": None if accuracy is None else Spread(accuracy, deviation),
        "loss": Spread(0.1),
        "flops_share": None if flops is None else Spread(flops),
        "seconds_share": None if seconds is None else Spread(seconds, 0.02),
        "seconds": Spread(31.0),
        "memory": None,
        "memory_share": None,
        "search_share": None,
        "state": "",
    }
    return Standing(**{**values, **changes})


def manifest(**changes) -> Manifest:
    """Of fixed and paired, three seeds."""
    values = {
        "recipe": "demo",
        "changes": ("epochs=30",),
        "settings": {"name": "demo", "epochs": 30},
        "clock": "wall",
        "match": "paired",
        "contenders": {
            "fixed": Entry({"fixed": True}, "", 3, Length(30, "epochs"), True, False),
            "paired": Entry({}, "", 3, Length(30, "epochs"), False, True),
        },
        "machine": "a machine",
    }
    return Manifest(**{**values, **changes})
