"""GrowthCallback: a model grows while a Lightning Trainer trains it.

Lightning loads weights before it tells callbacks, and makes optimizers after that. So a hook on loading gives the
model the shapes of the weights, and the Grower is made when there are optimizers, before their state is loaded.
"""

from __future__ import annotations

import gc
import importlib
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn

from growthring.growing.fading import fades_are_saved
from growthring.growing.grower import Grower
from growthring.growing.shapes import models_in, shapes_before_weights
from growthring.integrations import lightning_checks as checks
from growthring.integrations.lightning_loading import (
    begin_fades,
    match_checkpoint as match_checkpoint,
    saved_growth,
    state_key,
)
from growthring.planning.plan import Plan

_PACKAGE = checks.package()
_Callback: Any = importlib.import_module(_PACKAGE).Callback
_tell = importlib.import_module(f"{_PACKAGE}.utilities.rank_zero").rank_zero_info


class GrowthCallback(_Callback):
    """Grows the model that a LightningModule was built around, `self.net = plan.build_seed()`, or that it is.

    Averages of it grow along: those of Lightning's own callbacks, and any `AveragedModel` in the LightningModule.

    Args:
        plan: made with total_steps: as many as the trainer takes, `trainer.estimated_stepping_batches`.
        module: name of the model in the LightningModule, where more than one would fit the plan.
        averages: names of further averages of the model in the LightningModule.
        options: of the `Grower`: method, noise, fade, unknown_state, ...

    Attributes:
        grower: of the last fit; None before it, and once the trainer does something else.

    >>> import growthring as gr, lightning.pytorch as pl, torch
    >>> class Regression(pl.LightningModule):
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
    >>> model, growth = Regression(plan.build_seed()), GrowthCallback(plan)
    >>> off = ["logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"]
    >>> options = {"accelerator": "cpu", **dict.fromkeys(off, False)}
    >>> trainer = pl.Trainer(max_steps=6, callbacks=[growth], **options)
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
        checks.check_arguments(plan, module, averages, options)
        self.plan, self.module, self.averages, self.options = plan, module, averages, options
        self.grower: Grower | None = None
        self._sizes = [float(plan.num_parameters(t)) for t in range(plan.num_stages)]
        self._kept: tuple[weakref.ref[nn.Module], dict[str, Any]] | None = None  # of which model
        self._is_resumed = False  # from a checkpoint that this fit has loaded
        self._step = self._stepped = 0
        self._offset: int | None = None  # steps that the trainer has counted and growth has not
        self._open = ExitStack()  # hooks, for as long as the trainer runs

    @property
    def state_key(self) -> str:
        """Tells several in one checkpoint apart."""
        return state_key(self.module)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lets the module take on the shapes of whatever weights it will load."""
        checks.check_strategy(trainer.strategy, stage)
        self._open.close()
        self.grower, self._is_resumed = None, False
        if self._kept and not any(m is self._kept[0]() for m in pl_module.modules()):
            self._kept = None
        for root in [pl_module, *checks.copies_of(trainer)]:
            hook = shapes_before_weights(root, self.plan, self._models)
            self._open.callback(hook.remove)

    def _models(self, root: nn.Module) -> dict[str, nn.Module]:
        return models_in(root, self.plan, self.module, self.averages)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Takes up where growth was; norms that were fading in do so now, whatever the trainer runs."""
        state = saved_growth(checkpoint, self.module)
        if state is None:
            return
        if self.grower is not None:  # a tuner goes back to where the fit began
            self.grower.load_state_dict(state["growth"])
            return
        models = list(self._models(pl_module).values())
        begin_fades(models, self.plan, state["growth"])
        self._kept, self._is_resumed = (weakref.ref(models[0]), state), True

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Makes the Grower: optimizers are there, and their state is not loaded yet."""
        (path, model), *others = self._models(pl_module).items()
        optimizers, wrapper, copies = checks.training_parts(trainer, self.plan, path, model)
        averages = [*(average for _, average in others), *copies]
        if wrapper is not None:
            gc.collect()  # what an earlier fit had wrapped the model in is gone then
        self.grower = Grower(
            model, self.plan, optimizers, averages=averages, through=wrapper, **self.options
        )
        kept, widths = self._kept and self._kept[1]["growth"], self.plan.stage_widths
        if kept and (self._is_resumed or widths[kept["stage"]] == widths[self.grower.stage]):
            self.grower.load_state_dict(kept)
        elif self.grower.is_full and self.plan.num_stages > 1:
            checks.warn_of_full(trainer, path)
        if not pl_module.automatic_optimization:
            self._open.callback(optimizers[0].register_step_post_hook(self._count).remove)
        self._open.enter_context(fades_are_saved())
        self._offset = None
        if self._kept and self._is_resumed:
            self._offset, self._stepped = (self._kept[1][key] for key in ("offset", "stepped"))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Finds out how far the run is, now that all is loaded."""
        self._step = self.state_dict()["growth"]["pace"]["step"]
        if self._offset is None:
            self._offset = self._taken(trainer) - self._step
        if self.grower and not self.grower.is_full:
            checks.warn_of_length(trainer, self.plan, self._offset)
        checks.warn_of_saving(trainer, self.plan)
        self._follow(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Grows when the plan says so: after steps of the optimizer, not after batches."""
        self._follow(trainer)
        if self.grower and not trainer.barebones:
            name, stage = "/".join(filter(None, ("growth", self.module))), self.grower.stage
            values = {"stage": float(stage), "parameters": self._sizes[stage]}
            pl_module.log_dict({f"{name}/{key}": value for key, value in values.items()})

    def _follow(self, trainer: Any) -> None:
        while self.grower and self._step < self._taken(trainer) - (self._offset or 0):
            report = self.grower.step()
            self._step = report.step
            if report.growth:
                _tell(f"growthring: {report}")

    def _taken(self, trainer: Any) -> int:
        """Optimizer steps. Of several optimizers the trainer counts all together, so there we count one's."""
        is_counted = trainer.lightning_module.automatic_optimization
        return int(trainer.global_step) if is_counted else self._stepped

    def _count(self, *_: Any) -> None:
        self._stepped += 1

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Says what is missing, where the training ended early."""
        self._keep()
        if self.grower:
            checks.warn_of_end(trainer, self.grower, self._step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Remembers where growth was: the next fit of the same module goes on there."""
        self._keep()
        self._open.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leaves nothing on the module."""
        self._open.close()

    def _keep(self) -> None:
        if self.grower:
            self._kept = weakref.ref(self.grower.model), self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint remembers of growth: plain values and tensors."""
        if self.grower is None:
            return self._kept[1] | {"offset": None} if self._kept else {}  # of another trainer
        growth = self.grower.state_dict()
        return {"growth": growth, "offset": self._offset, "stepped": self._stepped}
