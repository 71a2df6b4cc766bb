"""What growing asks of a Lightning Trainer: whether it can be followed, how long it runs, what it leaves behind."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
import warnings
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel

from growthring.core.wording import counted
from growthring.errors import GrowthWarning, InputError, UnsupportedModelError
from growthring.graph.resize import named_tensors
from growthring.growing.grower import Grower
from growthring.growing.shapes import stage_of, take_shapes
from growthring.planning.plan import Plan

# By name: Lightning is installed under two names, whose classes are not the same.
_FOLLOWED, _NOT_FOLLOWED = {"SingleDeviceStrategy", "DDPStrategy"}, {"DeepSpeedStrategy"}
# Callbacks that change how many steps there will be.
_CHANGING = {"GradientAccumulationScheduler", "StochasticWeightAveraging"}
_OWN = {
    "model",
    "plan",
    "optimizer",
    "averages",
    "through",
    "shard",
    "osgd",
}  # not for the user to give


def package() -> str:
    """The name under which there is Lightning: the one that the user has imported, if any."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise  # it is there, something that it needs is not
        else:
            return name
    raise ImportError(
        "growthring.integrations.lightning needs Lightning, which is not installed: "
        'pip install "growthring[lightning]"'
    )


def check_arguments(plan: Any, module: Any, averages: Any, options: Iterable[str]) -> None:
    """Refuses arguments of a callback that cannot be, before there is a trainer."""
    if not isinstance(plan, Plan):
        raise InputError(f"plan is a {type(plan).__name__}; pass what gr.plan(...) returned.")
    if plan.total_steps is None:
        raise InputError(
            "the plan does not know how long the run is, so the callback could not tell when to grow: make it with "
            "gr.plan(..., total_steps=N), N being the optimizer steps that the trainer will take."
        )
    if not isinstance(module, str | None):
        raise InputError(
            f"module is a {type(module).__name__}; pass the name that it has in the LightningModule, such as 'net'."
        )
    if not isinstance(averages, list | tuple) or not all(isinstance(a, str) for a in averages):
        raise InputError(
            f"averages is a {type(averages).__name__}; pass a list of the names that averages of the model have in "
            "the LightningModule, such as ['teacher']."
        )
    known = sorted(set(inspect.signature(Grower).parameters) - _OWN)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            f"GrowthCallback got '{unknown[0]}', which is none of its arguments nor an option of gr.Grower: "
            f"{', '.join(known)}."
        )


def check_strategy(strategy: Any, stage: str) -> None:
    """Refuses strategies under which a model cannot grow.

    Args:
        strategy: of the trainer.
        stage: what the trainer is about to do.
    """
    kinds = {kind.__name__ for kind in type(strategy).__mro__}
    name = type(strategy).__name__
    if not kinds & _FOLLOWED or kinds & _NOT_FOLLOWED:
        raise UnsupportedModelError(
            f"a model cannot grow under Lightning's {name}, which may cut its weights into pieces where the "
            "callback cannot reach them. Use strategy='ddp', or one device."
        )
    method = getattr(strategy, "_start_method", "popen")
    if stage == "fit" and method != "popen":
        raise UnsupportedModelError(
            f"a model cannot grow under Lightning's {name} with start_method='{method}': it hands the trained "
            "weights back to a process whose model has never grown. Use strategy='ddp', which starts the script "
            "once for each device."
        )


def copies_of(trainer: Any) -> list[nn.Module]:
    """The copies of the LightningModule that Lightning's own callbacks average in (EMA, SWA)."""
    held = [getattr(callback, "_average_model", None) for callback in trainer.callbacks]
    copies = [each.module if isinstance(each, AveragedModel) else each for each in held]
    return [each for each in copies if isinstance(each, nn.Module)]


def training_parts(
    trainer: Any, plan: Plan, path: str, model: nn.Module
) -> tuple[list[Any], nn.Module | None, list[nn.Module]]:
    """The optimizers that train a model, what wraps the LightningModule around it, and callbacks' averages of it.

    Args:
        trainer: that has set up the three.
        plan: of the model.
        path: of the model in the LightningModule.
        model: that grows.
    """
    own = set(model.parameters())
    held = [(o, {p for g in o.param_groups for p in g["params"]}) for o in trainer.optimizers]
    optimizers = [optimizer for optimizer, parameters in held if parameters & own]
    if not optimizers:
        raise InputError(
            f"no optimizer of configure_optimizers() trains '{path}', the model that grows. Give it the "
            "parameters of the LightningModule: Optimizer(self.parameters(), ...)."
        )
    wrapped = trainer.strategy.model
    averages = [copy.get_submodule(path) for copy in copies_of(trainer)]
    for average in averages:  # a checkpoint was loaded that knows nothing of it
        take_shapes(average, plan, stage_of(named_tensors(model), plan) or 0)
    return optimizers, None if wrapped is trainer.lightning_module else wrapped, averages


def warn(trainer: Any, text: str) -> None:
    """Warns, of several processes on the first."""
    if trainer.is_global_zero:
        warnings.warn(text, GrowthWarning, stacklevel=3)


def warn_of_full(trainer: Any, path: str) -> None:
    """Says that somebody forgot the seed."""
    warn(
        trainer,
        f"'{path}' has its full size already, so nothing will grow: build the LightningModule around "
        "plan.build_seed().",
    )


def warn_of_length(trainer: Any, plan: Plan, offset: int) -> None:
    """Says so where a plan was made for another length than the trainer's.

    Args:
        trainer: that is about to train.
        plan: of its model.
        offset: steps that the trainer has counted and growth has not.
    """
    kinds = {kind.__name__ for each in trainer.callbacks for kind in type(each).__mro__}
    is_counted = trainer.lightning_module.automatic_optimization
    if trainer.fast_dev_run or kinds & _CHANGING or not is_counted:
        return
    steps = trainer.estimated_stepping_batches
    if 0 <= steps < math.inf and steps - offset != plan.total_steps:
        warn(
            trainer,
            f"the trainer stops after {counted(int(steps) - offset, 'optimizer step')}, the plan was made for "
            f"{plan.total_steps:,}. Make it for as many: gr.plan(..., total_steps={int(steps) - offset}).",
        )


def warn_of_saving(trainer: Any, plan: Plan) -> None:
    """Says so where checkpoints will lack what growth has to remember."""
    bare = [c for c in trainer.checkpoint_callbacks if getattr(c, "save_weights_only", False)]
    if bare and plan.groups.statistics:
        warn(
            trainer,
            f"{type(bare[0]).__name__} saves weights only. Norms of this model fade in after each growth, and "
            "until they have, the same weights in a plain model compute something else: leave "
            "save_weights_only out.",
        )


def warn_of_end(trainer: Any, grower: Grower, step: int) -> None:
    """Says what is missing where the training ended early."""
    if grower.is_complete or trainer.fast_dev_run:
        return
    left, fading = grower.plan.num_stages - 1 - grower.stage, len(grower.fading_norms)
    missing = [counted(left, "growth") + " to go until its full size"] if left else []
    missing += [counted(fading, "norm") + " still fading in"] if fading else []
    warn(
        trainer,
        f"the training ended after step {step:,} of the plan's {grower.plan.total_steps:,}; the model was left "
        f"with {', and '.join(missing)}. fit(ckpt_path=...) goes on where a checkpoint was saved.",
    )
