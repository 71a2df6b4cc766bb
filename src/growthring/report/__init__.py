"""Reports: self-contained HTML pages on runs; a page is a list of sections."""

from growthring.report.page import Section as Section, page as page
from growthring.report.report import (
    ReportError as ReportError,
    render as render,
    write_report as write_report,
)
