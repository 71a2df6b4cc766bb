"""Runs: the folder of a training run, the records in it, and what several runs come to."""

from growthring.runs.folder import RunFolder as RunFolder
from growthring.runs.records import (
    EpochRecord as EpochRecord,
    GrowthRecord as GrowthRecord,
    RatesRecord as RatesRecord,
    Result as Result,
)
from growthring.runs.run import Run as Run, read_run as read_run, read_runs as read_runs
from growthring.runs.spread import Spread as Spread
from growthring.runs.summary import (
    Row as Row,
    format_table as format_table,
    summary_table as summary_table,
)
