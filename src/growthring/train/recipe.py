"""Recipe: everything that decides a training run, as one frozen value."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

from torch import nn

from growthring.core.presets import preset_named
from growthring.errors import InputError
from growthring.files.source import PREFIX, load_source
from growthring.planning.lengths import Length
from growthring.planning.options import OPTIONS, UNSET, PlanOptions, nearest
from growthring.train.kinds import describe, fits

ModelFunction = Callable[..., nn.Module]


@dataclass(frozen=True, init=False)
class Recipe:
    """Settings of a run. A recipe is a function that returns one.

    Settings are flat wherever they are written: `Recipe("mine", model, epochs=30, lr=0.1)`, `--set epochs=30`,
    config.json. Those that are options of the plan are held in `plan`. The run is `epochs` long, or `total_steps`.

    Attributes:
        name: of the recipe.
        model: makes the full-size model; called with `model_options` and a `generator` for its weights.
        model_options: keyword arguments of `model`.
        data: name of a data set, see `growthring.train.tasks`.
        task: what the model shall do; by default what the data is for. See `growthring.train.Task`.
        task_options: settings of the task, such as the languages of a translation.
        stream: how the data grows with the stages, "classes" or "data", see `growthring.streams`; None has all of
            it from the start.
        stream_options: settings of the stream: `first` and `step`; `fractions` and `replacement`.
        stream_outputs: of growing classes, outputs of the model: "all" from the start (the paper), or those "seen",
            gained with the stages: class k of the model is then the k-th that came.
        osgd: dynamic OSGD, with a weight that falls "linear" or "cosine" over a stage; None is without.
        input_shape: of one example, (channels, height, width).
        num_train: use only the first so many training examples; None for all.
        side: average images down to side × side; None leaves them.
        shift: pixels of random shift.
        mirror: whether images are mirrored at random.
        plan: stages, epochs, batch_size, optimizer and so on, see `growthring.PlanOptions`.
        lr: learning rate at its peak.
        optimizer_options: more keyword arguments of the optimizer, ring options included.
        warmup_steps: steps over which the rate rises from 0.
        lr_schedule: "wsd" (warm-up, stable, decay), "linear", "cosine" or "constant", over the whole run; the
            plan's preset decides if it is not given.
        lr_decay: share of the run over which "wsd" falls to 0.
        label_smoothing: of the cross entropy.
        narrow_weight_decay: share of the weight decay at the seed's width; it rises with the width to 1.
        narrow_augmentation: share of the images that are augmented at the seed's width; it rises likewise.
        clip_norm: gradients are clipped to this norm; None does not clip.
        method, variance_transfer, noise: see `growthring.Grower`; the plan's preset decides what is not given.
        method_options: hyperparameters of the method, see `growthring.methods`.
        precision: "float32" or "bfloat16" (autocast).
        compile: torch.compile, before the first step: of all stages ("always", True), of none ("never", False), or
            of those where it is measured to pay ("auto"), see `growthring.train.choices`.
        fixed: train the full-size model from the start: the baseline.
        small: train the seed's width throughout and never grow: the other baseline.
        seed: of all random numbers.
        published: the paper's training cost in percent, for comparison.

    Raises:
        InputError: there is no such setting, or it is not of its type.
        PlanError: an option of the plan is not what it may be.

    >>> from growthring.zoo import mlp8
    >>> recipe = Recipe("mine", mlp8, epochs=30, lr=0.05)
    >>> str(recipe.length), recipe.lr
    ('30 epochs', 0.05)
    >>> str(Recipe("mine", mlp8, total_steps=2000).length)
    '2,000 steps'
    """

    name: str
    model: ModelFunction
    model_options: Mapping[str, Any] = field(default_factory=dict)
    data: str = "digits"
    task: Any = field(
        default=None, metadata={"later": True}
    )  # a Task, which knows what a recipe is
    task_options: Mapping[str, Any] = field(default_factory=dict, metadata={"later": True})
    stream: str | None = field(default=None, metadata={"later": True})
    stream_options: Mapping[str, Any] = field(default_factory=dict, metadata={"later": True})
    stream_outputs: str = field(default="all", metadata={"later": True})
    osgd: str | None = field(default=None, metadata={"later": True})
    input_shape: tuple[int, ...] = field(default=(3, 32, 32), metadata={"bounds": (1, 100_000)})
    num_train: int | None = field(default=None, metadata={"bounds": (1, 10**12)})
    side: int | None = field(default=None, metadata={"bounds": (1, 10_000)})
    shift: int = field(default=4, metadata={"bounds": (0, 10_000)})
    mirror: bool = True
    plan: PlanOptions = field(default_factory=PlanOptions)
    lr: float = 0.1
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    warmup_steps: int = field(default=0, metadata={"bounds": (0, 10**15)})
    lr_schedule: str = UNSET
    lr_decay: float = field(default=0.2, metadata={"later": True})
    label_smoothing: float = 0.0
    narrow_weight_decay: float = field(default=1.0, metadata={"later": True})
    narrow_augmentation: float = field(default=1.0, metadata={"later": True})
    clip_norm: float | None = None
    method: str = "paired"
    method_options: Mapping[str, Any] = field(default_factory=dict)
    variance_transfer: str = UNSET
    noise: float = UNSET
    precision: str = "float32"
    compile: bool | Literal["auto", "always", "never"] = False
    fixed: bool = False
    small: bool = False
    seed: int = field(default=0, metadata={"bounds": (0, 2**63 - 1)})
    published: float | None = None

    def __init__(
        self,
        name: str,
        model: ModelFunction,
        model_options: Mapping[str, Any] | None = None,
        *,
        plan: PlanOptions | None = None,
        **settings: Any,
    ) -> None:
        plan = PlanOptions() if plan is None else plan
        if not isinstance(plan, PlanOptions):
            raise InputError(f"plan={plan!r:.60} is a {type(plan).__name__}, not a PlanOptions.")
        settings |= {"name": name, "model": model}
        if model_options is not None:
            settings["model_options"] = model_options
        for key, value in settings.items():
            _check(key, value)
        options = {key: settings.pop(key) for key in OPTIONS if key in settings}
        settings["plan"] = plan = _with_length(plan.changed(**options))
        for key, value in vars(plan).items():
            if key != "epochs" or value is not None:
                _check(key, value)
        preset = preset_named(plan.preset)
        settings.setdefault("variance_transfer", preset.variance_transfer)
        settings.setdefault("noise", preset.noise)
        settings.setdefault("lr_schedule", preset.lr_schedule)
        for own in dataclasses.fields(self):
            value = settings.get(own.name, _default(own))
            object.__setattr__(self, own.name, tuple(value) if isinstance(value, list) else value)

    @property
    def length(self) -> Length:
        """Of the whole run: the plan of a recipe has one number, whose share a comparison trains."""
        if self.plan.total_steps is not None:
            return Length(self.plan.total_steps, "steps")
        assert isinstance(self.plan.epochs, int)
        return Length(self.plan.epochs, "epochs")

    @property
    def batch_size(self) -> int:
        """Of the last stage: the plan of a recipe has one number, with which its data begins."""
        assert isinstance(self.plan.batch_size, int)
        return self.plan.batch_size

    def settings(self) -> dict[str, Any]:
        """All settings by name, those of the plan among them: what `Recipe` takes."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            key: value
            for name, whole in values.items()
            for key, value in (vars(whole) if name == "plan" else {name: whole}).items()
            if key != "epochs" or value is not None  # of total_steps: a number, or not there
        }

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON can hold them; the model by its qualified name."""
        values = {key: value for key, value in self.settings().items() if _is_stored(key, value)}
        return dict(json.loads(json.dumps(values, default=_described)))


def _with_length(plan: PlanOptions) -> PlanOptions:
    is_open = plan.epochs is None and plan.total_steps is None
    return plan.changed(epochs=EPOCHS) if is_open else plan


def _kinds() -> dict[str, Any]:
    own = {key: kind for key, kind in get_type_hints(Recipe).items() if key != "plan"}
    return {**get_type_hints(PlanOptions), "epochs": int, "batch_size": int, **own}


KINDS = _kinds()  # of all settings
EPOCHS = 160  # of a recipe that says nothing
CODE = ("model", "build", "task")  # settings that are functions: no text can give them


def change(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """A recipe with other settings; `optimizer_options.momentum` reaches into mappings.

    Raises:
        GrowthError: there is no such setting, or it is not what it may be.

    >>> from growthring.zoo import mlp8
    >>> recipe = Recipe("mine", mlp8, optimizer_options={"momentum": 0.9, "weight_decay": 5e-4})
    >>> change(recipe, {"epochs": 3, "optimizer_options.momentum": 0.8}).optimizer_options
    {'momentum': 0.8, 'weight_decay': 0.0005}
    >>> str(change(recipe, {"total_steps": 500}).length)
    '500 steps'
    """
    values = recipe.settings()
    for one, other in (("epochs", "total_steps"), ("total_steps", "epochs")):
        if settings.get(one) is not None:  # in place of the other, unless both are given
            values.pop(other, None)
    if settings.get("preset", recipe.plan.preset) != recipe.plan.preset:
        # what a preset decides is the new one's, unless it is given as well
        own = {"variance_transfer", "noise", "lr_schedule"}
        decided = {*preset_named(settings["preset"]).plan, *own} - {"epochs"}
        values = {key: value for key, value in values.items() if key not in decided}
    for key, value in settings.items():
        name, _, part = key.partition(".")
        if part and not isinstance(values.get(name), Mapping):
            raise InputError(f"{key}={value!r}: '{name}' has no parts.")
        values[name] = {**values[name], part: value} if part else value
    return Recipe(**values)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two recipes' settings, in words; one that is not there has its default.

    >>> differences({"epochs": 3}, {"epochs": 4, "small": False})
    ['epochs: 3 -> 4']
    """
    fields = {f.name: f for f in dataclasses.fields(Recipe)} | OPTIONS
    old, new = ({"preset": "paper", **one} for one in (old, new))  # the only one there was
    keys = dict.fromkeys([*old, *new])
    known = {key: _absent(fields[key]) for key in keys if key in fields} | {"epochs": None}
    pairs = {key: ({**known, **old}.get(key), {**known, **new}.get(key)) for key in keys}
    return [f"{key}: {a!r} -> {b!r}" for key, (a, b) in pairs.items() if a != b]


def load_recipe(source: str, known: Mapping[str, Callable[[], Recipe]]) -> Recipe:
    """A recipe by name, or from a user's file as `path/to/file.py:function`."""
    path, separator, function = source.rpartition(":")
    if not separator or not path.endswith(".py"):
        if source not in known:
            listed = ", ".join(known)
            raise InputError(
                f"there is no recipe '{source}'. Known: {listed}; or path/to/file.py:function."
            )
        return known[source]()
    make = getattr(load_source(path), function, None)
    if not callable(make):
        raise InputError(f"'{path}' has no function '{function}'.")
    try:
        recipe = make()
    except Exception as error:  # the user's own code
        raise InputError(f"'{source}' failed: {type(error).__name__}: {error}") from error
    if not isinstance(recipe, Recipe):
        raise InputError(
            f"'{source}' returned a {type(recipe).__name__}, not a growthring.train.Recipe."
        )
    return recipe


def name_of(code: Any) -> str:
    """The qualified name of a function or class, the same in every process.

    >>> from growthring.zoo import mlp8
    >>> name_of(mlp8), name_of(functools.partial(mlp8, width=8))
    ('growthring.zoo.mlp.mlp8', 'partial(growthring.zoo.mlp.mlp8, width=8)')
    """
    if isinstance(code, functools.partial):
        inner = [name_of(code.func), *map(repr, code.args)]
        inner += [f"{key}={v!r}" for key, v in sorted(code.keywords.items())]
        return f"partial({', '.join(inner)})"
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{named.__module__.removeprefix(PREFIX)}.{named.__qualname__}"


def _check(key: str, value: Any) -> None:
    if key not in KINDS:
        raise InputError(f"a recipe has no setting '{key}'; {nearest(key, sorted(KINDS))}.")
    if not fits(value, KINDS[key]):
        raise InputError(
            f"{key}={value!r:.60}: '{key}' is {describe(KINDS[key])}, not {type(value).__name__}."
        )


def _default(one: dataclasses.Field[Any]) -> Any:
    if one.default_factory is not dataclasses.MISSING:
        return one.default_factory()
    return None if one.default is dataclasses.MISSING else one.default


def _absent(one: dataclasses.Field[Any]) -> Any:
    """What a stored run that does not have the setting was trained with."""
    return one.metadata.get("absent", _default(one))


def _is_stored(key: str, value: Any) -> bool:
    if key == "preset":  # runs were stored before there were two
        return bool(value != "paper")
    one = ({f.name: f for f in dataclasses.fields(Recipe)} | OPTIONS)[key]
    return not (one.metadata.get("later", False) and value == _absent(one))


def _described(value: Any) -> Any:
    """What JSON cannot hold, in words that are the same in every process."""
    return dict(value) if isinstance(value, Mapping) else name_of(value)
