"""The error of data that cannot be read."""

from __future__ import annotations

from growthring.errors import GrowthError


class DataError(GrowthError, ValueError):
    """A data file is missing, damaged, foreign or in the wrong place; the message names it."""
