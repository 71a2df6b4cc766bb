"""Reports on runs: a self-contained HTML page, and a table for the terminal."""

from growthring.report.page import (
    ReportError as ReportError,
    render as render,
    write_report as write_report,
)
from growthring.report.summary import (
    Row as Row,
    Spread as Spread,
    format_table as format_table,
    summary_table as summary_table,
)
