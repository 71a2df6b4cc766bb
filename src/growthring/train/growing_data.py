"""Growing data of a recipe: what its settings mean, and what is known of it before it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from growthring.data import ImageData, ImageFolder
from growthring.data.batch import Batch, Stream
from growthring.errors import InputError
from growthring.growing.osgd import ANNEALS
from growthring.planning.plan import Plan
from growthring.streams import GrowingData, ProgressiveClasses, ProgressiveData, labels_of
from growthring.streams.base import permutation
from growthring.streams.data import FRACTIONS, checked_fractions
from growthring.train.measure import IGNORED
from growthring.train.recipe import Recipe, change

Labelled = TypeVar("Labelled", ImageData, ImageFolder)

# Settings of each kind of stream, and what they are by default.
STREAMS: dict[str, dict[str, Any]] = {
    "classes": {"first": 20, "step": 10},
    "data": {"fractions": FRACTIONS, "replacement": True},
}


OUTPUTS = ("all", "seen")


def check_stream(recipe: Recipe) -> None:
    """Refuses settings of growing data that cannot be had.

    Raises:
        InputError: names the setting, and what it may be.
    """
    if recipe.stream is not None and recipe.stream not in STREAMS:
        raise InputError(f"stream={recipe.stream!r} is not one of {', '.join(STREAMS)}, or none.")
    if recipe.osgd is not None and recipe.osgd not in ANNEALS:
        raise InputError(f"osgd={recipe.osgd!r} is not one of {', '.join(ANNEALS)}, or none.")
    if recipe.stream_outputs not in OUTPUTS:
        raise InputError(
            f"stream_outputs={recipe.stream_outputs!r} is not one of {', '.join(OUTPUTS)}."
        )
    if recipe.stream_outputs == "seen" and recipe.small:
        raise InputError(
            "stream_outputs='seen' with small=True: a model that never grows cannot gain outputs."
        )
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
    if recipe.stream == "data":
        return ProgressiveData(data, **options, seed=recipe.seed)
    if recipe.stream_outputs == "all":
        return ProgressiveClasses(data, **options, seed=recipe.seed)
    labels = labels_of(
        data
    )  # the recipe's own data is numbered in the order of arrival, see `by_arrival`
    return ProgressiveClasses(data, **options, order=range(int(labels.max()) + 1), labels=labels)


def stage_classes(
    recipe: Recipe, num_stages: int, growing: GrowingData | None = None
) -> tuple[int, ...] | None:
    """Outputs of the model at each stage, where it gains them with the classes; None where it has all.

    Args:
        recipe: the settings.
        num_stages: of the plan.
        growing: the data; None where it is not read, and all classes are taken to come by the last stage.

    Raises:
        InputError: the classes do not come in the order of their numbers, which is that of the outputs.
    """
    if recipe.stream_outputs == "all" or recipe.fixed:
        return None
    if growing is None:
        options = stream_options(recipe)
        return tuple(options["first"] + options["step"] * stage for stage in range(num_stages))
    seen = [growing.seen(min(stage, len(growing) - 1)) for stage in range(num_stages)]
    known = [classes for classes in seen if classes is not None]
    if len(known) < num_stages or list(known[-1]) != list(range(len(known[-1]))):
        raise InputError(
            "stream_outputs='seen': outputs are gained in the order of their numbers, and the classes of this data "
            "come in another, or are not known. Number them in the order in which they come: "
            "ProgressiveClasses(..., order=range(n))."
        )
    return tuple(map(len, known))


def by_arrival(data: Labelled, recipe: Recipe) -> Labelled:
    """Images whose classes are numbered in the order of arrival, where outputs are gained with them.

    The order is that of `ProgressiveClasses` for the recipe's seed. Classes without names get their numbers as
    names.
    """
    if recipe.stream != "classes" or recipe.stream_outputs == "all":
        return data
    names = names_of(data)
    return renamed(data, [names[c] for c in permutation(len(names), recipe.seed).tolist()])


def names_of(data: ImageData | ImageFolder) -> list[str]:
    """Names of classes in the order of labels; their numbers where they have none.

    >>> names_of(ImageData(torch.zeros(1, 1, 1, 1).byte(), torch.tensor([0]), 2, "none"))
    ['0', '1']
    """
    return [str(c) for c in range(data.num_classes)] if data.classes is None else list(data.classes)


def renamed(data: Labelled, names: Sequence[str]) -> Labelled:
    """The same images, their classes numbered in the order of these names."""
    places = {name: place for place, name in enumerate(names)}
    positions = torch.tensor([places[name] for name in names_of(data)])
    return replace(data, labels=positions[data.labels], classes=tuple(names))


def known_only(batches: Iterable[Batch], count: int) -> Iterator[Batch]:
    """Batches in which the targets of classes that are still to come do not count."""
    for inputs, targets in batches:
        yield inputs, targets.masked_fill(targets >= count, IGNORED)


def with_stages(recipe: Recipe, growing: GrowingData) -> Recipe:
    """The recipe with as many stages as its data has, if it does not say how many."""
    if recipe.plan.asked_stages is not None:
        growing.check_stages(recipe.plan.asked_stages)
        return recipe
    return change(recipe, {"stages": len(growing)})


def pass_notes(recipe: Recipe, plan: Plan) -> list[str]:
    """What the passes of dynamic OSGD cost, in words; nothing without it."""
    if recipe.osgd is None or not plan.epochs:
        return []
    shares = plan.data_shares or (1.0,) * plan.num_stages
    flops = [footprint.flops for footprint in plan.footprints]
    passes = sum(share * each for share, each in zip(shares[:-1], flops[:-1], strict=True))
    cost = passes / (sum(plan.examples) * flops[-1])
    return [
        f"dynamic OSGD passes once more over the data of each stage but the last: another {cost:.2%} of the FLOPs "
        "of fixed-size training."
    ]


def enter(growing: GrowingData | None, stream: Stream, stage: int) -> None:
    """Lets a stream go on with a stage's data, where that grows."""
    if growing is not None:
        growing.enter(stream, stage)
