"""Errors that a user can cause. Each says where, what was found, why, and what to do about it."""

from __future__ import annotations


class GrowthError(Exception):
    """Base of every error that growthring raises on purpose."""


class InputError(GrowthError, ValueError):
    """An argument does not fit: wrong type, shape, device, name or number."""


class TraceError(GrowthError, RuntimeError):
    """The model could not be traced with the example inputs."""


class WidthGroupError(GrowthError, ValueError):
    """No width group, or not the one asked for, can be grown."""


class PlanError(GrowthError, ValueError):
    """A plan asks for widths that the model cannot have."""


class UnsupportedModelError(GrowthError, ValueError):
    """The model is in a form that cannot be grown (compiled, wrapped, quantised, lazy, meta)."""


class GrowthStepError(GrowthError, RuntimeError):
    """A growth step failed; model, optimizer and grower are as they were before it."""


class RanksError(GrowthStepError):
    """The processes that train one model are not of one mind, or one of them failed; nothing was changed."""


class FadeError(GrowthError, RuntimeError):
    """A statistic over a growing width cannot fade in as it was planned to."""


class GrowthWarning(UserWarning):
    """A model is, or may be left, other than it looks: norms that still fade in, a run that ended early."""
