"""What the final models of runs do, as texts to read: translations beside their references."""

from __future__ import annotations

from collections.abc import Sequence

from growthring.report.markup import table, text
from growthring.runs.configurations import Configuration
from growthring.runs.samples import read_samples

_MOST = 10  # samples of a run


def sample_section(configurations: Sequence[Configuration]) -> str:
    """A table of samples for each configuration that has any, of its first run."""
    parts = []
    for configuration in configurations:
        samples = next(filter(None, map(read_samples, _folders(configuration))), [])[:_MOST]
        if samples:
            head = [title for title, _ in samples[0]]
            rows = [[text(dict(sample).get(title, "–")) for title in head] for sample in samples]
            shown = table(f"Samples of {configuration.label}", [text(h) for h in head], rows, False)
            parts.append(shown)
    return "".join(parts)


def has_samples(configurations: Sequence[Configuration]) -> bool:
    """Whether there is anything to read."""
    return any(read_samples(folder) for c in configurations for folder in _folders(c))


def _folders(configuration: Configuration) -> list[str]:
    return [str(run.path) for run in configuration.runs]
