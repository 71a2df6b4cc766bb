"""Metric: a number that a task is judged by, which way it is better, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from growthring.runs.spread import Spread
from growthring.runs.values import items, mapping, string


@dataclass(frozen=True)
class Metric:
    """What a number of a run's result is.

    Attributes:
        key: of the number in results and records.
        name: in tables.
        unit: "%" for shares, which are written in percent; else whatever follows the number, or nothing.
        is_higher_better: which way is better.
        digits: after the point.

    >>> ACCURACY.text(Spread(0.978, 0.002)), PERPLEXITY.text(Spread(5.25)), BLEU.gain(30.0, 31.5)
    ('97.80 ± 0.20 %', '5.250', 1.5)
    >>> PERPLEXITY.gain(5.5, 5.0), ACCURACY.axis
    (0.5, 'test accuracy, %')
    """

    key: str
    name: str
    unit: str = ""
    is_higher_better: bool = True
    digits: int = 2

    @property
    def factor(self) -> float:
        """From the stored number to the written one."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def title(self) -> str:
        """At the head of a column."""
        return f"test {self.name}"

    @property
    def axis(self) -> str:
        """Beside an axis."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def text(self, value: Spread | float) -> str:
        """A number, or a mean with its deviation, as it is written."""
        value = value if isinstance(value, Spread) else Spread(value)
        if self.unit == "%":
            return value.percent(self.digits)
        if self.key == LOSS.key:
            return value.plain()
        about = "" if value.deviation is None else f" ± {value.deviation:.{self.digits}f}"
        return f"{value.mean:.{self.digits}f}{about}{' ' + self.unit if self.unit else ''}"

    def gain(self, old: float, new: float) -> float:
        """By how much the new number is better, as it is written."""
        return self.factor * (new - old if self.is_higher_better else old - new)

    @property
    def gain_unit(self) -> str:
        """What a gain is counted in."""
        return f"points of {self.name}" if self.unit == "%" else f"of {self.name}"


ACCURACY = Metric("test_accuracy", "accuracy", "%")
LOSS = Metric("test_loss", "loss", is_higher_better=False, digits=4)
PERPLEXITY = Metric("test_perplexity", "perplexity", is_higher_better=False, digits=3)
BLEU = Metric("test_bleu", "BLEU")
FORGETTING = Metric("test_forgetting", "forgetting", "%", is_higher_better=False)
_BY_KEY = {metric.key: metric for metric in (ACCURACY, LOSS, PERPLEXITY, BLEU, FORGETTING)}


def stored(metrics: Sequence[Metric]) -> list[dict[str, Any]]:
    """Metrics as JSON can hold them."""
    return [asdict(metric) for metric in metrics]


def read_metrics(config: Mapping[str, Any]) -> tuple[Metric, ...]:
    """The metrics of a run's configuration, the first one first; none that is damaged, none of a run of before.

    >>> read_metrics({"metrics": stored([BLEU])}) == (BLEU,), read_metrics({"metrics": [1, {}]})
    (True, ())
    """
    found = []
    for one in map(mapping, items(config.get("metrics"))):
        key, name, digits = one.get("key"), one.get("name"), one.get("digits", 2)
        if not isinstance(key, str) or not isinstance(name, str) or type(digits) is not int:
            continue
        is_higher = one.get("is_higher_better") is not False
        unit = string(one.get("unit") or "")
        found.append(_BY_KEY.get(key, Metric(key, name, unit, is_higher, min(max(digits, 0), 9))))
    return tuple(found)


def headline_of(runs: Sequence[tuple[Sequence[Metric], Mapping[str, object]]]) -> Metric:
    """What runs are compared by: the first metric that one of them has a number for.

    Args:
        runs: of each its metrics, and its numbers by key.

    >>> (
    ...     headline_of([((), {"test_loss": 1.0})]).name,
    ...     headline_of([((BLEU,), {"test_bleu": 3})]).name,
    ... )
    ('loss', 'BLEU')
    """
    listed = [metric for metrics, _ in runs for metric in metrics]
    for metric in dict.fromkeys([*listed, ACCURACY, LOSS]):
        if any(values.get(metric.key) is not None for _, values in runs):
            return metric
    return listed[0] if listed else ACCURACY
