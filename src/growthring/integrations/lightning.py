"""GrowthCallback: a model grows while a Lightning Trainer trains it.

Lightning loads weights before it tells callbacks, and makes optimizers after that. So a hook on loading gives the
model the shapes of the weights, and the Grower is made when there are optimizers, before their state is loaded.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import math
import sys
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel

from growthring.core.wording import counted
from growthring.errors import GrowthWarning, InputError, UnsupportedModelError
from growthring.growing.fading import Fades, fades_are_saved
from growthring.growing.grower import Grower
from growthring.growing.matching import check_saved
from growthring.growing.shapes import models_in, stage_of, take_shapes
from growthring.planning.plan import Plan


def _package() -> str:
    """The name under which there is Lightning: the one that the user has imported, if any."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
        else:
            return name
    raise ImportError(
        "growthring.integrations.lightning needs Lightning, which is not installed: "
        'pip install "growthring[lightning]"'
    )


_PACKAGE = _package()
_Callback: Any = importlib.import_module(_PACKAGE).Callback
_rank_zero_info = importlib.import_module(f"{_PACKAGE}.utilities.rank_zero").rank_zero_info
_CHANGES_LENGTH = (
    "GradientAccumulationScheduler"  # so that nobody can tell how many steps there will be
)
_OPTIONS = set(inspect.signature(Grower).parameters) - {
    "model", "plan", "optimizer", "averages", "through"
}  # fmt: skip


class GrowthCallback(_Callback):
    """Grows a model that a LightningModule was built around, `self.net = plan.build_seed()`, or is.

    Averages of it grow along: those of Lightning's own callbacks, and any `AveragedModel` in the LightningModule.

    Args:
        plan: made with total_steps: as many as the trainer takes, `trainer.estimated_stepping_batches`.
        module: name of the model in the LightningModule, where more than one would fit the plan.
        averages: names of further averages of the model in the LightningModule.
        options: of the `Grower`: method, noise, fade, unknown_state, ...

    Attributes:
        grower: of the last fit; None before it.

    >>> import growthring as gr, lightning.pytorch as pl, torch
    >>> class Classifier(pl.LightningModule):
    ...     def __init__(self, net):
    ...         super().__init__()
    ...         self.net = net
    ...
    ...     def training_step(self, batch, index):
    ...         return self.net(batch).square().mean()
    ...
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = gr.plan(net, torch.ones(1, 4), total_steps=6)
    >>> growth = GrowthCallback(plan)
    >>> quiet = dict.fromkeys(["logger", "enable_progress_bar", "enable_model_summary"], False)
    >>> trainer = pl.Trainer(
    ...     max_steps=6, accelerator="cpu", callbacks=[growth], **quiet, enable_checkpointing=False
    ... )
    >>> model = Classifier(plan.build_seed())
    >>> trainer.fit(model, torch.utils.data.DataLoader(torch.ones(6, 4)))
    >>> model.net[0].out_features, growth.grower.is_complete
    (8, True)
    """

    def __init__(
        self,
        plan: Plan,
        module: str | None = None,
        averages: Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(plan, Plan):
            raise InputError(f"plan is a {type(plan).__name__}; pass what gr.plan(...) returned.")
        if plan.total_steps is None:
            raise InputError(
                "the plan does not know how long the run is, so the callback could not tell when to grow: make it "
                "with gr.plan(..., total_steps=N), N being the optimizer steps that the trainer will take."
            )
        unknown = sorted(set(options) - _OPTIONS)
        if unknown:
            raise InputError(
                f"GrowthCallback got '{unknown[0]}', which is none of its arguments nor an option of gr.Grower: "
                f"{', '.join(sorted(_OPTIONS))}."
            )
        self.plan, self.module, self.averages, self.options = plan, module, averages, options
        self.grower: Grower | None = None
        self._kept: tuple[weakref.ref[nn.Module], dict[str, Any]] | None = None  # of which model
        self._steps = self._offset = self._stepped = 0
        self._is_resumed = False
        self._open = ExitStack()  # hooks, for as long as the trainer runs

    @property
    def state_key(self) -> str:
        """Tells several in one checkpoint apart."""
        name: str = super().state_key
        return name if self.module is None else f"{name}({self.module!r})"

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lets the module take on the shapes of whatever weights it will load."""
        _check_strategy(trainer.strategy)
        self._open.close()
        self._is_resumed = False
        if self._kept is not None and not any(m is self._kept[0]() for m in pl_module.modules()):
            self.grower = self._kept = None  # of another model
        # a copy that a callback makes later has the hook from the module
        for root in [pl_module, *_averages_of(trainer)]:
            self._open.callback(root.register_load_state_dict_pre_hook(self._hook()).remove)

    def _hook(self) -> Any:
        def take_saved_shapes(root: Any, weights: Mapping[str, Any], prefix: str, *_: Any) -> None:
            for path, model in self._models(root).items():
                stage = stage_of(weights, self.plan, f"{prefix}{path}." if path else prefix)
                if stage is not None:
                    take_shapes(model, self.plan, stage)

        return take_saved_shapes  # a function, which copies of a module share

    def _models(self, root: nn.Module) -> dict[str, nn.Module]:
        return models_in(root, self.plan, self.module, self.averages)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Notes where growth was; norms that were fading in do so now, whatever the trainer runs."""
        state = (checkpoint.get("callbacks") or {}).get(self.state_key)
        if state is not None:
            model = next(iter(self._models(pl_module).values()))
            check_saved(state["growth"], self.plan, 0)
            Fades(model, self.plan.groups.statistics).load_state_dict(state["growth"]["fades"])
            self.grower, self._kept, self._is_resumed = None, (weakref.ref(model), state), True

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Makes the Grower: optimizers are there, and their state is not loaded yet."""
        (path, model), *followers = self._models(pl_module).items()
        copies = [copy.get_submodule(path) for copy in _averages_of(trainer)]
        own = {id(p) for p in model.parameters()}
        optimizers = [o for o in trainer.optimizers if own & set(map(id, _parameters_of(o)))]
        if not optimizers:
            raise InputError(
                f"no optimizer of configure_optimizers() trains '{path}', the model that grows: it returns "
                f"{', '.join(type(o).__name__ for o in trainer.optimizers) or 'none'}."
            )
        wrapped = trainer.strategy.model
        if wrapped is not pl_module:
            gc.collect()  # what an earlier fit was wrapped in holds the model no longer
        self.grower = Grower(
            model,
            self.plan,
            optimizers,
            averages=[*(average for _, average in followers), *copies],
            through=None if wrapped is pl_module else wrapped,
            **self.options,
        )
        if self._kept is not None and (
            self._is_resumed or self._kept[1]["growth"]["stage"] == self.grower.stage
        ):
            self.grower.load_state_dict(self._kept[1]["growth"])
        elif self.grower.is_full and self.plan.num_stages > 1:
            self._warn(
                trainer,
                f"'{path}' has its full size already, so nothing will grow: build the LightningModule around "
                "plan.build_seed().",
            )
        if not pl_module.automatic_optimization:
            self._open.callback(optimizers[0].register_step_post_hook(self._count).remove)
        self._open.enter_context(fades_are_saved())

    def _count(self, *_: Any) -> None:
        self._stepped += 1

    # While it trains.

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Finds out how far the run is, now that all is loaded; says so if the plan is for another length."""
        grower = self._grower
        self._steps = int(grower.state_dict()["pace"]["step"])
        if self._is_resumed and self._kept is not None:
            self._offset, self._stepped = (self._kept[1][key] for key in ("offset", "stepped"))
        else:
            self._offset = self._taken(trainer) - self._steps
        is_known = not any(type(c).__name__ == _CHANGES_LENGTH for c in trainer.callbacks)
        if trainer.fast_dev_run or grower.is_full or not is_known:
            return
        left = trainer.estimated_stepping_batches - trainer.global_step
        planned = int(self.plan.total_steps or 0) - self._steps
        if 0 <= left < math.inf and left != planned and pl_module.automatic_optimization:
            end = "before the model is complete" if left < planned else "long after it is"
            self._warn(
                trainer,
                f"the trainer will take {counted(int(left), 'step')}, the plan has {planned:,} left: the training "
                f"would end {end}. Make the plan with total_steps=trainer.estimated_stepping_batches, "
                f"{trainer.estimated_stepping_batches:,} in all.",
            )
        if grower.plan.groups.statistics and any(
            getattr(c, "save_weights_only", False) for c in trainer.checkpoint_callbacks
        ):
            self._warn(
                trainer,
                "a checkpoint callback saves weights only, and norms fade in after each growth: what such a "
                "checkpoint computes then is not what the model did. Let it save everything.",
            )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Grows when the plan says so: after steps of the optimizer, not after batches."""
        for _step in range(self._taken(trainer) - self._offset - self._steps):
            report = self._grower.step()
            self._steps = report.step
            if report.growth is not None:
                _rank_zero_info(f"growthring: {report}")
        if not trainer.barebones:
            where = "growth" if self.module is None else f"growth/{self.module}"
            size = self.plan.num_parameters(self._grower.stage)
            values = {"stage": float(self._grower.stage), "parameters": float(size)}
            pl_module.log_dict({f"{where}/{name}": value for name, value in values.items()})

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Says what is missing, where the training ended early."""
        self._keep()
        grower = self._grower
        if not grower.is_complete and not trainer.fast_dev_run:
            fading = len(grower.fading_norms)
            self._warn(
                trainer,
                f"the training ended after step {self._steps:,} of the plan's {self.plan.total_steps:,}: the model "
                f"is at stage {grower.stage} of {self.plan.num_stages - 1}, and {counted(fading, 'norm')} of it still "
                "fade in. fit(ckpt_path=...) goes on.",
            )

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Notes where growth was: a fit of the same module goes on there."""
        self._keep()
        self._open.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leaves nothing on the module."""
        self._open.close()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint remembers of growth: plain values and tensors."""
        if self.grower is None:
            return {} if self._kept is None else self._kept[1]
        growth = self.grower.state_dict()
        return {"growth": growth, "offset": self._offset, "stepped": self._stepped}

    def _keep(self) -> None:
        if self.grower is not None:
            self._kept = weakref.ref(self.grower.model), self.state_dict()

    @property
    def _grower(self) -> Grower:
        assert self.grower is not None  # Lightning calls on_fit_start first
        return self.grower

    def _taken(self, trainer: Any) -> int:
        """Optimizer steps; the trainer counts those of all optimizers together, so of several we count ourselves."""
        is_counted = trainer.lightning_module.automatic_optimization
        return int(trainer.global_step) if is_counted else self._stepped

    def _warn(self, trainer: Any, text: str) -> None:
        if trainer.is_global_zero:
            warnings.warn(text, GrowthWarning, stacklevel=3)


def match_checkpoint(
    pl_module: Any, plan: Plan, checkpoint: dict[str, Any], module: str | None = None
) -> None:
    """Brings a LightningModule to the stage that a checkpoint was saved in, before it loads the weights.

    For `LightningModule.on_load_checkpoint(self, checkpoint)`: `load_from_checkpoint` works at any stage then, and
    knows no callbacks that could do it.

    Args:
        pl_module: built around the seed, or a model of any other stage.
        plan: that it was trained with.
        checkpoint: what `on_load_checkpoint` was given.
        module: as the callback was told.
    """
    callback = GrowthCallback(plan, module)
    callback._hook()(pl_module, checkpoint["state_dict"], "")
    callback.on_load_checkpoint(None, pl_module, checkpoint)


def _check_strategy(strategy: Any) -> None:
    kinds = {kind.__name__ for kind in type(strategy).__mro__}
    name = type(strategy).__name__
    if not kinds & {"SingleDeviceStrategy", "DDPStrategy"} or "DeepSpeedStrategy" in kinds:
        raise UnsupportedModelError(
            f"GrowthCallback does not know how a model grows under {name}, which may keep its weights in pieces. "
            "Use strategy='ddp', or one device."
        )
    if getattr(strategy, "_start_method", "popen") != "popen":
        raise UnsupportedModelError(
            f"{name} (start_method={strategy._start_method!r}) hands the trained weights back to a process whose "
            "model has never grown. Use strategy='ddp', which starts the script once for each device."
        )


def _averages_of(trainer: Any) -> list[nn.Module]:
    """The copies of the LightningModule that Lightning's own callbacks average in (EMA, SWA)."""
    held = [getattr(callback, "_average_model", None) for callback in trainer.callbacks]
    copies = [each.module if isinstance(each, AveragedModel) else each for each in held]
    return [each for each in copies if isinstance(each, nn.Module)]


def _parameters_of(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]
