"""The log of a run: one JSON object per line, of which the last may be cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from growthring.files.foreign import read_plain
from growthring.report.values import items, mapping, number, parse, reason, whole

_MOST = 1 << 30  # bytes of a log that are read

_NUMBERS = (
    *("step", "train_loss", "test_loss", "test_accuracy"),
    *("seconds", "flops", "flops_share"),
)


@dataclass(frozen=True)
class Epoch:
    """The metrics after one epoch; `number` counts the epochs done, so the first has number 1."""

    number: float
    stage: int
    step: float | None
    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    seconds: float | None
    flops: float | None
    flops_share: float | None


@dataclass(frozen=True)
class Growth:
    """One growth: the stage that it led to and what it did; `num_epochs` were done before."""

    stage: int
    num_epochs: int
    step: int | None
    seconds: float | None
    change: float | None
    parameters: int | None


@dataclass(frozen=True)
class Rates:
    """The rate factors of every ring of some parameters at one step."""

    step: float
    factors: dict[str, tuple[float | None, ...]]


def read_metrics(path: Path, problems: list[str]) -> tuple[list[Epoch], list[Growth], list[Rates]]:
    """Reads the log; records that a resumed run wrote again replace those of before."""
    epochs: list[Epoch] = []
    growths: list[Growth] = []
    rates: list[Rates] = []
    num_damaged = 0
    try:
        lines = read_plain(path, _MOST).split(b"\n")[:-1]  # no newline: it is still being written
    except FileNotFoundError:
        problems.append(f"It has no {path.name}.")
        return epochs, growths, rates
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read ({reason(error)}).")
        return epochs, growths, rates
    for line in lines:
        try:
            record = parse(line)
        except ValueError:
            num_damaged += bool(line.strip())
            continue
        kind = mapping(record).get("kind")
        if kind == "epoch":
            epoch = _epoch(record, epochs)
            while epochs and epochs[-1].number >= epoch.number:
                epochs.pop()
            while growths and growths[-1].num_epochs > len(epochs):
                growths.pop()
            epochs.append(epoch)
        elif kind == "growth":
            growth = _growth(record, len(epochs), growths)
            while growths and growths[-1].stage >= growth.stage:
                growths.pop()
            growths.append(growth)
        elif kind == "rates" and (step := number(record.get("step"))) is not None:
            while rates and rates[-1].step >= step:
                rates.pop()
            factors = mapping(record.get("factors"))
            rates.append(Rates(step, {k: tuple(map(number, items(v))) for k, v in factors.items()}))
    if num_damaged:
        lines_are = "1 line is" if num_damaged == 1 else f"{num_damaged} lines are"
        problems.append(f"{lines_are} unreadable in {path.name}.")
    # A run that counts its epochs from 0 has trained by the record of epoch 0.
    if epochs and epochs[0].number == 0 and epochs[0].step != 0:
        epochs = [replace(epoch, number=epoch.number + 1) for epoch in epochs]
    return epochs, growths, rates


def _epoch(record: dict[str, Any], before: Sequence[Epoch]) -> Epoch:
    found = number(record.get("epoch"))
    stage = whole(record.get("stage"))
    last = before[-1] if before else None
    return Epoch(
        number=found if found is not None else (last.number + 1 if last else 1.0),
        stage=stage if stage is not None else (last.stage if last else 0),
        **{key: number(record.get(key)) for key in _NUMBERS},
    )


def _growth(record: dict[str, Any], num_epochs: int, before: Sequence[Growth]) -> Growth:
    stage = whole(record.get("stage"))
    return Growth(
        stage=stage if stage is not None else (before[-1].stage if before else 0) + 1,
        num_epochs=num_epochs,
        step=whole(record.get("step")),
        seconds=number(record.get("seconds")),
        change=number(record.get("change")),
        parameters=whole(record.get("parameters")),
    )
