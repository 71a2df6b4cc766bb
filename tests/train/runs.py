"""Runs of seconds: recipes, what a run came to, and children that are killed in the middle of one."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from growthring.checkpoint import load_weights, read_json, read_jsonl
from growthring.runs import RunFolder
from growthring.train import Recipe, Silence, Trainer, change, parse_settings
from growthring.train.lengths import evaluation_steps
from growthring.train.progress import Status
from growthring.train.recipes import RECIPES, demo
from tests.train.nets import normed, plain

TINY = ("epochs=3", "first_epochs=none", "stages=3", "num_train=96", "batch_size=32")


# 4, 7 and all 10 classes of the digits.
CLASSES = ("stream=classes", "stream_options={'first': 4, 'step': 3}")


def resnet(*settings: str) -> Recipe:
    """The demo's ResNet-8 at width 8."""
    return change(demo(), parse_settings([*TINY, "model_options.width=8", *settings]))


def small(*settings: str, model: Callable[..., Any] = plain) -> Recipe:
    """A network of linear layers on the demo's images: ready in a moment."""
    recipe = Recipe(
        "small",
        model,
        input_shape=(1, 8, 8),
        shift=1,
        mirror=False,
        growth=None,
        lr=0.05,
        optimizer_options={"momentum": 0.9, "weight_decay": 5e-4},
    )
    return change(recipe, parse_settings([*TINY, *settings]))


def stepped(steps: int, *settings: str, model: Callable[..., Any] = plain) -> Recipe:
    """The same for so many steps: three make an epoch, and growths come anywhere in one."""
    return change(small(*settings, model=model), {"total_steps": steps})


def translation(*settings: str) -> Recipe:
    """A Transformer of seconds on number words; six batches make an epoch."""
    tiny = parse_settings(
        [
            *("epochs=3", "stages=2", "num_train=64", "batch_size=12", "warmup_steps=4", "lr=0.01"),
            *("model_options.d_model=8", "model_options.num_heads=2", "model_options.d_embed=8"),
            *("model_options.num_encoder_layers=1", "model_options.num_decoder_layers=1"),
            *("task_options.max_length=16", "task_options.beam=1", "label_smoothing=0.1"),
            *("model_options.dropout=0.1", "task_options.num_test=20"),
        ]
    )
    return change(change(RECIPES["numbers-transformer"](), tiny), parse_settings(settings))


def language(*settings: str) -> Recipe:
    """A GPT of seconds on Python's own sources."""
    tiny = parse_settings(
        [
            *("epochs=3", "stages=2", "num_train=24", "batch_size=4", "input_shape=(8,)"),
            *("model_options.width=16", "model_options.num_layers=1", "model_options.block_size=8"),
            *("model_options.num_heads=2", "model_options.dropout=0.1", "warmup_steps=2"),
        ]
    )
    return change(change(RECIPES["python-gpt"](), tiny), parse_settings(settings))


KINDS: dict[str, Callable[[], Recipe]] = {
    "grown": lambda: resnet(),
    "fixed": lambda: resnet("fixed=true"),
    "adam": lambda: small("optimizer=adam", "lr=0.01", "optimizer_options={}"),
    "own schedule": lambda: small("optimizer_options.ring_schedule=own"),
    "growing batches": lambda: small("batch_growth=0.4", "batch_size=16", "batch_rate=linear"),
    "dropout": lambda: small("model_options.dropout=0.3"),
    "layer norm": lambda: small("model_options.dropout=0.2", model=normed),
    "avagrad": lambda: small("optimizer=avagrad", "optimizer_options={}", model=normed),
    "steps": lambda: stepped(11, "model_options.dropout=0.3"),
    "steps of layer norm": lambda: stepped(11, model=normed),
    "steps of growing batches": lambda: stepped(11, "batch_growth=0.4", "batch_size=16"),
    "steps of adam": lambda: stepped(13, "optimizer=adam", "lr=0.01", "optimizer_options={}"),
    "steps, fixed": lambda: stepped(11, "fixed=true"),
    "classes": lambda: small(*CLASSES, "osgd=linear", "model_options.dropout=0.3"),
    "classes of layer norm": lambda: small(*CLASSES, "osgd=cosine", model=normed),
    "classes, fixed": lambda: small(*CLASSES, "osgd=linear", "fixed=true"),
    "classes, steps": lambda: stepped(11, *CLASSES, "osgd=linear"),
    "classes that are seen": lambda: small(*CLASSES, "stream_outputs=seen", "osgd=linear"),
    "growing data": lambda: small("stream=data", "stream_options.fractions=(0.3,0.6,1.0)"),
    "translation": lambda: translation(),
    "translation, steps": lambda: translation("total_steps=11"),
    "translation, growing batches": lambda: translation("batch_growth=0.4"),
    "language": lambda: language(),
    "language, steps": lambda: language("total_steps=11"),
    "bfloat16": lambda: small("precision=bfloat16", "clip_norm=0.5", "warmup_steps=4"),
}


class Killer(Silence):
    """Acts as the progress of a run: after a step, before a growth or anywhere else it is told."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        super().__init__()
        self.at, self.act = at, act

    def step(self, status: Status) -> None:
        if status.step == self.at:
            self.act()


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], object]) -> int:
    """Runs `work` in a forked child; returns its exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Runs:
    """One recipe in many folders. The trainer is made once and only ever used in forked children."""

    def __init__(self, recipe: Recipe, **options: Any) -> None:
        self.trainer = Trainer(recipe, "unused", progress=Silence(), **options)

    def start(
        self, folder: Path, before: Callable[[Trainer], object] = lambda trainer: None
    ) -> int:
        """Begins a run in the folder, or resumes the one that is there."""

        def work() -> None:
            self.trainer.folder = RunFolder(folder)
            before(self.trainer)
            if (folder / "config.json").exists():
                self.trainer.resume()
            self.trainer.fit()

        return in_child(work)


def every(steps: int | None) -> Callable[[Trainer], None]:
    """Sets how often checkpoints are written."""

    def put(trainer: Trainer) -> None:
        trainer._cadence = (steps, 600.0, 3)

    return put


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "cpu_seconds")}
        for line in read_jsonl(folder / "metrics.jsonl")
    ]


def assert_same_run(a: Path, b: Path) -> None:
    """Equal weights to the bit, equal metrics line by line, equal results, but for the seconds."""
    first, second = load_weights(a / "model.safetensors"), load_weights(b / "model.safetensors")
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype and tensor.equal(second[name]), name
    assert metrics(a) == metrics(b)
    results = [read_json(folder / "result.json") for folder in (a, b)]
    for result in results:
        for key in ("seconds", "cpu_seconds", "peak_memory"):
            result.pop(key)
    assert results[0] == results[1]


def assert_whole(folder: Path, recipe: Recipe) -> None:
    """Each evaluation has its line, once and in order; each growth has its own."""
    lines = metrics(folder)
    found = [line for line in lines if line["kind"] == "epoch"]
    if recipe.length.unit == "epochs":
        assert [line["epoch"] for line in found] == list(range(recipe.length.count))
    else:
        planned = read_json(folder / "config.json")["plan"]["steps"]
        assert [line["step"] for line in found] == evaluation_steps(planned)
    grown = [line["stage"] for line in lines if line["kind"] == "growth"]
    assert grown == ([] if recipe.fixed else list(range(1, recipe.plan.stages)))
