"""The log of a run, read: one JSON object per line, of which the last may be cut off."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from growthring.files.foreign import read_plain
from growthring.runs.records import EpochRecord, GrowthRecord, RatesRecord, StageRecord
from growthring.runs.values import mapping, parse_json, reason

_MOST = 1 << 30  # bytes of a log that are read


@dataclass
class Log:
    """The records of a log, each kind in order."""

    epochs: list[EpochRecord] = field(default_factory=list)
    growths: list[GrowthRecord] = field(default_factory=list)
    rates: list[RatesRecord] = field(default_factory=list)
    stages: list[StageRecord] = field(default_factory=list)


def read_log(path: Path, problems: list[str]) -> Log:
    """Reads a log; records that a resumed run wrote again replace those of before.

    Args:
        path: of the log.
        problems: gets a sentence for what is missing or damaged.
    """
    log, num_damaged = Log(), 0
    try:
        lines = read_plain(path, _MOST).split(b"\n")[:-1]  # no newline: it is still being written
    except FileNotFoundError:
        problems.append(f"It has no {path.name}.")
        return log
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read ({reason(error)}).")
        return log
    for line in lines:
        try:
            _add(log, mapping(parse_json(line)))
        except ValueError:
            num_damaged += bool(line.strip())
    if num_damaged:
        lines_are = "1 line is" if num_damaged == 1 else f"{num_damaged} lines are"
        problems.append(f"{lines_are} unreadable in {path.name}.")
    # A run that counts its epochs from 0 has trained by the record of epoch 0.
    if log.epochs and log.epochs[0].number == 0 and log.epochs[0].step != 0:
        log.epochs = [replace(epoch, number=epoch.number + 1) for epoch in log.epochs]
    return log


def _is_again(old: EpochRecord, new: EpochRecord) -> bool:
    """Whether a run that was resumed has come to where it had been, or before."""
    if old.number != new.number or old.step is None or new.step is None:
        return old.number >= new.number
    return old.step >= new.step  # a loader that is longer than it says


def _add(log: Log, line: dict[str, object]) -> None:
    epochs, growths, rates = log.epochs, log.growths, log.rates
    if line.get("kind") == EpochRecord.KIND:
        epoch = EpochRecord.of_line(line, epochs[-1] if epochs else None)
        while epochs and _is_again(epochs[-1], epoch):
            epochs.pop()
        while growths and growths[-1].num_epochs > len(epochs):
            growths.pop()
        epochs.append(epoch)
    elif line.get("kind") == GrowthRecord.KIND:
        growth = GrowthRecord.of_line(line, len(epochs), growths[-1] if growths else None)
        while growths and growths[-1].stage >= growth.stage:
            growths.pop()
        growths.append(growth)
    elif line.get("kind") == RatesRecord.KIND:
        record = RatesRecord.of_line(line)
        if record is not None:
            while rates and rates[-1].step >= record.step:
                rates.pop()
            rates.append(record)
    elif line.get("kind") == StageRecord.KIND:
        stage = StageRecord.of_line(line)
        if stage is not None:
            while log.stages and log.stages[-1].stage >= stage.stage:
                log.stages.pop()
            log.stages.append(stage)
