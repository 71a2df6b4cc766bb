"""Side by side with gromo on what it can do: growing inside residual blocks, and the hidden layers of an MLP.

    python -m benchmarks.versus_gromo [--repeats 5] [--json]

Both libraries grow the *same* network from the *same* weights: it is built from gromo's own classes
(gromo can grow no others), trained for three steps, and then its hidden widths are doubled, once by gromo
and once by growthring, for which it is just some nn.Module. What only one of them can do is tried in the
second half.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import inspect
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import growthring as gr
from benchmarks.measure import Result, Sample, Table, main, parser, ratio, seconds
from growthring import zoo
from growthring.growing.verify import Verification, compare_outputs


@dataclass(frozen=True)
class Task:
    """A network by its hidden width (a share of the full one), and an input."""

    name: str
    make: Callable[[float], nn.Module]
    shape: tuple[int, ...]


def _resnet(
    stages: int, blocks: int, inplanes: int, preactivation: bool
) -> Callable[[float], nn.Module]:
    def make(share: float) -> nn.Module:
        resnet = importlib.import_module("gromo.containers.resnet")
        return resnet.init_full_resnet_structure(
            input_shape=(3, 32, 32),
            out_features=10,
            hidden_channels=tuple(int(inplanes * 2**i * share) for i in range(stages)),
            number_of_blocks_per_stage=blocks,
            nb_stages=stages,
            inplanes=inplanes,
            use_preactivation=preactivation,
            skip_first_downsample=False,
            device=torch.device("cpu"),
        )

    return make


def _mlp(share: float) -> nn.Module:
    module = importlib.import_module("gromo.containers.growing_mlp")
    return module.GrowingMLP(
        in_features=3 * 32 * 32,
        out_features=10,
        hidden_size=int(512 * share),
        number_hidden_layers=4,
        activation=nn.ReLU(),
        device=torch.device("cpu"),
    )


TASKS = (
    Task("pre-activation ResNet-20", _resnet(3, 3, 16, True), (16, 3, 32, 32)),
    Task("ResNet-20", _resnet(3, 3, 16, False), (16, 3, 32, 32)),
    Task("ResNet-18", _resnet(4, 2, 64, False), (8, 3, 32, 32)),
    Task("MLP, 4 × 512", _mlp, (16, 3, 32, 32)),
)

# settings of gromo's create_layer_extensions
GROMO: dict[str, dict[str, Any]] = {
    "default (copy_uniform, no pairs)": {},
    "zeros (input_extension_init)": {"input_extension_init": "zeros"},
    "pairs, noise 0": {"neuron_pairing": "vv_z_negz", "noise_ratio": 0.0},
    "pairs, noise 1e-3": {"neuron_pairing": "vv_z_negz"},
    "pairs, default_vt, noise 0": {
        "neuron_pairing": "vv_z_negz",
        "noise_ratio": 0.0,
        "rescaling": "default_vt",
    },
}
YARDSTICK = "pairs, noise 0"
# settings of growthring's Grower
OURS: dict[str, dict[str, Any]] = {
    "default (preserving, noise 1e-3)": {},
    "preserving, noise 0": {"noise": 0.0},
    "off, noise 0": {"variance_transfer": "off", "noise": 0.0},
    "off, noise 1e-3": {"variance_transfer": "off"},
    "paper, noise 0": {"variance_transfer": "paper", "noise": 0.0},
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def train(model: nn.Module, seed: int, shape: tuple[int, ...]) -> torch.optim.Optimizer:
    """Three steps of SGD with momentum, so that weights, statistics and optimizer state are not fresh."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model.train()
    for _ in range(3):
        x = torch.randn(shape, generator=generator)
        y = torch.randint(0, 10, shape[:1], generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return optimizer


def grow_with_gromo(model: nn.Module, settings: dict[str, Any]) -> None:
    """Doubles every hidden width, one layer after the other, as gromo's complete_growth does."""
    for layer in model._growable_layers:  # type: ignore[union-attr]
        size = getattr(layer, "second_layer", layer).in_neurons  # type: ignore[union-attr]
        layer.create_layer_extensions(extension_size=size, **settings)  # type: ignore[union-attr]
        layer.apply_change(extension_size=size, scaling_factor=1.0)  # type: ignore[union-attr]
        layer.delete_update(include_previous=True)  # type: ignore[union-attr]


def inside_widths(full: nn.Module, x: torch.Tensor) -> dict[str, list[int]]:
    """Widths at two stages in which only the insides of blocks (or the hidden layers) grow, from half."""
    widths = {}
    for group in gr.discover_width_groups(full, x).growable:
        inside = ".first_layer." in group.name or group.name.startswith("layers.")
        widths[group.name] = [group.width // 2 if inside else group.width, group.width]
    return widths


def outputs(model: nn.Module, x: torch.Tensor, training: bool) -> list[torch.Tensor]:
    """Outputs in one mode, the statistics of the model untouched."""
    twin = copy.deepcopy(model).train(training)
    with torch.no_grad():
        return [twin(x)]


@dataclass
class Outcome:
    """What one growth did."""

    evaluation: Verification
    training: Verification
    tracked: int
    with_state: int
    live: int
    trains: bool
    milliseconds: float


def observe(
    model: nn.Module, optimizer: torch.optim.Optimizer, grow: Callable[[], Any], x: torch.Tensor
) -> Outcome:
    """Grows once, and looks at the model and its optimizer afterwards."""
    before = [outputs(model, x, training) for training in (False, True)]
    elapsed = seconds(grow)
    after = [outputs(model, x, training) for training in (False, True)]
    live = list(model.parameters())
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    state = optimizer.state
    with_state = sum(
        p in state and state[p]["momentum_buffer"].shape == p.shape for p in live if id(p) in held
    )
    values = [p.detach().clone() for p in live]
    model.train()
    trains = True
    try:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    except RuntimeError:
        trains = False
    moved = all(not torch.equal(a, b) for a, b in zip(values, live, strict=True))
    return Outcome(
        compare_outputs(before[0], after[0]),
        compare_outputs(before[1], after[1]),
        sum(id(p) in held for p in live),
        with_state,
        len(live),
        trains and moved,
        1e3 * elapsed,
    )


def compare_task(task: Task, args: argparse.Namespace, table: Table) -> dict[str, Any]:
    """Every setting of both libraries on one network, in turns."""
    torch.manual_seed(args.seed)
    initial = copy.deepcopy(task.make(0.5).state_dict())
    torch.manual_seed(args.seed + 1)
    full = task.make(1.0)
    x = torch.randn(task.shape, generator=torch.Generator().manual_seed(args.seed))
    plans = []
    with quiet():
        widths = inside_widths(full, x)
        planning = seconds(lambda: plans.append(gr.plan(full, x, stages=2, widths=widths)))

    def run_gromo(settings: dict[str, Any]) -> Outcome:
        model = task.make(0.5)
        model.load_state_dict(initial)
        optimizer = train(model, args.seed, task.shape)
        torch.manual_seed(args.seed)
        return observe(model, optimizer, lambda: grow_with_gromo(model, settings), x)

    def run_ours(settings: dict[str, Any]) -> Outcome:
        model = plans[0].build_seed()
        model.load_state_dict(initial)  # strict: it has gromo's own shapes and keys
        optimizer = train(model, args.seed, task.shape)
        generator = torch.Generator().manual_seed(args.seed)
        grower = gr.Grower(model, plans[0], optimizer, generator=generator, **settings)
        return observe(model, optimizer, lambda: grower.grow(measure=False), x)

    cases = {("gromo", name): partial(run_gromo, given) for name, given in GROMO.items()}
    cases |= {("growthring", name): partial(run_ours, given) for name, given in OURS.items()}
    found: dict[tuple[str, str], list[Outcome]] = {key: [] for key in cases}
    with quiet():
        for repeat in range(args.repeats + 1):
            for key, case in cases.items():
                outcome = case()
                if repeat:
                    found[key].append(outcome)
    times = {key: Sample(tuple(o.milliseconds for o in found[key])) for key in cases}
    data: dict[str, Any] = {"plan_seconds": planning}
    for key, outcomes in found.items():
        last = outcomes[-1]
        factor = ratio(times[key], times["gromo", YARDSTICK])
        table.rows.append(
            [
                *(
                    task.name,
                    *key,
                    f"{last.evaluation.relative:.1e}",
                    f"{last.training.relative:.1e}",
                ),
                *(f"{last.tracked} of {last.live}", f"{last.with_state} of {last.live}"),
                *("yes" if last.trains else "no", times[key].show(1), factor.show(2)),
            ]
        )
        data[": ".join(key)] = {
            "eval": last.evaluation.as_dict(),
            "train": last.training.as_dict(),
            "tracked": last.tracked,
            "with_state": last.with_state,
            "live": last.live,
            "trains_every_parameter": last.trains,
            "milliseconds": times[key].as_dict(),
            "ratio": factor.as_dict(),
        }
    table.notes.append(
        f"{task.name}: growthring's plan, made once per training run, took {planning:.1f} s."
    )
    return data


# What only one of the two can do.


def _attempt(action: Callable[[], str]) -> str:
    try:
        with quiet():
            return action()
    except Exception as error:
        text = " ".join(str(error).split()) or "no message"
        return f"refuses: {type(error).__name__}: {text[:110]}{'…' if len(text) > 110 else ''}"


def _ours(model: nn.Module, x: torch.Tensor, method: str = "paired", **given: Any) -> str:
    plan = gr.plan(model, x, **({"stages": 3} | given))
    search: Any = {"batches": [(x, torch.arange(len(x)))], "loss": nn.functional.cross_entropy}
    grower = gr.Grower(plan.build_seed(), plan, method=method, noise=0.0, **search)
    worst = 0.0
    while not grower.is_full:
        change = grower.grow().change
        assert change is not None
        worst = max(worst, change.relative)
        grower.finish()
    return f"grows, {len(plan.groups.growable)} widths, relative change ≤ {worst:.0e}"


def _gromo_source(word: str) -> str:
    package = Path(inspect.getfile(importlib.import_module("gromo"))).parent
    files = [f.name for f in package.rglob("*.py") if word in f.read_text().lower()]
    return (
        f"its source speaks of it in {', '.join(files)}"
        if files
        else "no: nothing of the kind in its source"
    )


def _gromo_stream() -> str:
    model = TASKS[0].make(1.0)
    stem = model.pre_net[0]  # type: ignore[index]
    kinds = {type(layer).__name__ for layer in model._growable_layers}  # type: ignore[union-attr]
    return f"no: only {', '.join(sorted(kinds))} grow, the stem is a plain {type(stem).__name__}"


def _gromo_layer(name: str) -> Any:
    module = {"Linear": "linear_growing_module", "Conv2d": "conv2d_growing_module"}[name]
    return getattr(importlib.import_module(f"gromo.modules.{module}"), f"{name}GrowingModule")


def _gromo_user_model() -> str:
    linear = _gromo_layer("Linear")
    layer = linear(8, 2, previous_module=nn.Linear(4, 8))  # type: ignore[arg-type]
    layer.create_layer_extensions(4)
    return "grows"


def _gromo_groups() -> str:
    names = inspect.signature(_gromo_layer("Conv2d").__init__).parameters
    return (
        "takes groups" if "groups" in names else "no: Conv2dGrowingModule has no argument `groups`"
    )


def _gromo_odd() -> str:
    model = TASKS[0].make(0.5)
    block = model._growable_layers[0]  # type: ignore[union-attr,index]
    block.create_layer_extensions(extension_size=3, neuron_pairing="vv_z_negz")
    return "grows"


def _gromo_from_nothing() -> str:
    model = TASKS[0].make(0.0)
    x = torch.randn(2, 3, 32, 32)
    before = model.eval()(x)
    block = model._growable_layers[0]  # type: ignore[union-attr,index]
    block.create_layer_extensions(4, neuron_pairing="vv_z_negz", noise_ratio=0.0)
    block.apply_change(extension_size=4, scaling_factor=1.0)
    return f"grows, relative change {compare_outputs([before], [model(x)]).relative:.0e}"


def _ours_from_nothing() -> str:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return _ours(net, torch.zeros(1, 4), widths={"0": [0, 4, 8]})


def abilities(seed: int) -> Table:
    """Tries what is beyond the common ground, on both sides."""
    table = Table("What each can grow", ["", "gromo", "growthring"])
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(2, 3, 32, 32, generator=generator)
    tokens = torch.randint(0, 50, (2, 8), generator=generator)
    gpt = zoo.GPT(50, 16, 2, 4, 64, generator=generator)
    rows: list[tuple[str, Callable[[], str], Callable[[], str]]] = [
        (
            "a plain nn.Module of the user's own class",
            _gromo_user_model,
            lambda: _ours(zoo.resnet20(generator=generator), images),
        ),
        (
            "gromo's own ResNet, unmodified, residual stream included",
            _gromo_stream,
            lambda: _ours(TASKS[0].make(1.0), images),
        ),
        (
            "depthwise convolutions (MobileNetV1)",
            _gromo_groups,
            lambda: _ours(zoo.mobilenetv1(generator=generator), images),
        ),
        ("attention (a small GPT)", lambda: _gromo_source("attention"), lambda: _ours(gpt, tokens)),
        (
            "an odd number of new units, in pairs",
            _gromo_odd,
            lambda: _ours(zoo.resnet20(width=13, generator=generator), images, round_to=1),
        ),
        ("a hidden width that starts at 0", _gromo_from_nothing, _ours_from_nothing),
        (
            "new units chosen from gradients (TINY, GradMax)",
            lambda: "yes: compute_optimal_updates",
            lambda: _ours(zoo.resnet20(generator=generator), images, "gradmax"),
        ),
    ]
    for what, theirs, ours in rows:
        table.rows.append([what, _attempt(theirs), _attempt(ours)])
    return table


def run(args: argparse.Namespace) -> Result:
    """Compares both libraries on every task."""
    table = Table(
        "Hidden widths doubled, by gromo and by growthring",
        [
            *("network", "library", "setting", "change, eval", "change, train"),
            *(
                "optimizer holds",
                "momentum kept",
                "next step trains all",
                "grow, ms",
                f"relative to gromo, {YARDSTICK}",
            ),
        ],
    )
    data: dict[str, Any] = {}
    try:
        importlib.import_module("gromo")
    except ImportError as error:
        table.notes.append(f"not run: {error}")
        return Result(
            "Beside gromo", "gromo is not installed (`pip install gromo`).", [table], data
        )
    for task in TASKS:
        data[task.name] = compare_task(task, args, table)
    table.notes += [
        "change: largest difference of the outputs, relative to the largest output, in eval mode and with "
        "the batch's own statistics. `default_vt` and `paper` are the paper's rule (Table 1), which changes "
        "a function that has no norm to absorb the factor. gromo gives every layer that it widens the factor "
        "of hidden layers; growthring gives output layers their own, and biases follow.",
        "optimizer holds: of the grown model's parameters, those that the SGD optimizer made before the "
        "growth still points at; momentum kept: those of them whose momentum has the grown shape. gromo "
        "replaces its layers, so its users make a new optimizer after each growth.",
        "gromo grows one layer after the other by concatenation; growthring all at once, optimizer state "
        "included, and checks the model first. Neither runs the model within the time.",
    ]
    about = (
        "Networks of gromo's own classes, the inside of every block (of the MLP: every hidden layer) from "
        "half to full width, the residual stream fixed. Both start from the same weights and the same "
        "optimizer after three steps of SGD. gromo: `create_layer_extensions`, `apply_change`, "
        "`delete_update` per layer; growthring: `Grower(model, plan, optimizer).grow(measure=False)`."
    )
    return Result("Beside gromo", about, [table, abilities(args.seed)], data)


if __name__ == "__main__":
    main(run, parser("Compares growthring with gromo.", repeats=5))
