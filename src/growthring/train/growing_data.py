"""Growing data of a recipe: what its settings mean, and what is known of it before it is read."""

from __future__ import annotations

from typing import Any

from growthring.data.batch import Stream
from growthring.errors import InputError
from growthring.growing.osgd import ANNEALS
from growthring.streams import GrowingData, ProgressiveClasses, ProgressiveData
from growthring.streams.data import FRACTIONS, checked_fractions
from growthring.train.recipe import Recipe, change

# Settings of each kind of stream, and what they are by default.
STREAMS: dict[str, dict[str, Any]] = {
    "classes": {"first": 20, "step": 10},
    "data": {"fractions": FRACTIONS, "replacement": True},
}


def check_stream(recipe: Recipe) -> None:
    """Refuses settings of growing data that cannot be had.

    Raises:
        InputError: names the setting, and what it may be.
    """
    if recipe.stream is not None and recipe.stream not in STREAMS:
        raise InputError(f"stream={recipe.stream!r} is not one of {', '.join(STREAMS)}, or none.")
    if recipe.osgd is not None and recipe.osgd not in ANNEALS:
        raise InputError(f"osgd={recipe.osgd!r} is not one of {', '.join(ANNEALS)}, or none.")
    options = stream_options(recipe)
    if recipe.stream == "data":
        checked_fractions(options["fractions"])
        if not isinstance(options["replacement"], bool):
            raise InputError(
                f"stream_options.replacement={options['replacement']!r}: true or false."
            )
    for key in ("first", "step") if recipe.stream == "classes" else ():
        value = options[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"stream_options.{key}={value!r}: a number of classes, at least 1.")


def stream_options(recipe: Recipe) -> dict[str, Any]:
    """The settings of the recipe's stream, with their defaults.

    Raises:
        InputError: there is no such setting.
    """
    known = STREAMS.get(recipe.stream or "", {})
    for key in recipe.stream_options:
        if key not in known:
            kind = (
                f"stream={recipe.stream!r} are {', '.join(known)}"
                if known
                else "none, as there is no stream"
            )
            raise InputError(f"stream_options has '{key}'; the settings of {kind}.")
    return {**known, **recipe.stream_options}


def expected_shares(recipe: Recipe) -> tuple[float, ...] | None:
    """How much of its data a recipe has at each stage, as far as can be told before the data is read.

    Of classes that come step by step, all are taken to be of one size, and the last to come in the last stage.

    Raises:
        InputError: the recipe does not say in how many stages its classes come.

    >>> from growthring.zoo import mlp8
    >>> settings = {"stream": "classes", "stream_options": {"first": 2, "step": 4}, "stages": 3}
    >>> expected_shares(Recipe("mine", mlp8, **settings))
    (0.2, 0.6, 1.0)
    """
    if recipe.stream is None:
        return None
    options = stream_options(recipe)
    if recipe.stream == "data":
        fractions = checked_fractions(options["fractions"])
        return tuple(fraction / fractions[-1] for fraction in fractions)
    stages = recipe.plan.asked_stages
    if stages is None:
        raise InputError(
            "stream='classes' without data to count the classes of: say in how many stages they come (stages=9)."
        )
    counts = [options["first"] + options["step"] * stage for stage in range(stages)]
    return tuple(count / counts[-1] for count in counts)


def growing_data(recipe: Recipe, data: Any) -> GrowingData | None:
    """The recipe's growing data out of all of its data; None where it does not grow.

    Raises:
        InputError: the data is not such as could grow so.
    """
    if recipe.stream is None:
        return None
    options = stream_options(recipe)
    kind = ProgressiveClasses if recipe.stream == "classes" else ProgressiveData
    return kind(data, **options, seed=recipe.seed)


def with_stages(recipe: Recipe, growing: GrowingData) -> Recipe:
    """The recipe with as many stages as its data has, if it does not say how many."""
    if recipe.plan.asked_stages is not None:
        growing.check_stages(recipe.plan.asked_stages)
        return recipe
    return change(recipe, {"stages": len(growing)})


def enter(growing: GrowingData | None, stream: Stream, stage: int) -> None:
    """Lets a stream go on with a stage's data, where that grows."""
    if growing is not None:
        growing.enter(stream, stage)
