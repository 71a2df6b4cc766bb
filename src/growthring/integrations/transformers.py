"""Growing inside transformers' Trainer: a callback that grows on time, and a mixin that resumes at any stage.

The Trainer loads weights before it makes an optimizer, and the optimizer's state before it calls anybody. So the
mixin gives the model its shapes before the first, and makes the Grower before the second.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from torch import nn

from growthring.core.wording import counted
from growthring.distributed.wrapping import live_wrappers
from growthring.errors import GrowthWarning, InputError
from growthring.growing.fading.warning import fades_are_saved
from growthring.growing.grower import Grower
from growthring.growing.matching import check_saved, find_stage
from growthring.growing.shapes import take_shapes
from growthring.integrations.arguments import TRAINER, check_arguments
from growthring.integrations.saved import FILE, read_growth, write_growth
from growthring.planning.plan import Plan

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise ImportError(
        "growthring.integrations.transformers needs transformers: pip install 'growthring[transformers]'"
    ) from error

_Base: Any = Trainer if TYPE_CHECKING else object


class GrowthCallback(TrainerCallback):
    """Grows the Trainer's model as a plan says; `Trainer(plan.build_seed(), callbacks=[GrowthCallback(plan)])`.

    Every checkpoint is one of a model of its widths, with a config.json that says them, and can be loaded with
    `from_pretrained`. To resume from one the Trainer has to be a `GrowthTrainer`.

    Args:
        plan: what to grow to; its `total_steps` are the Trainer's.
        loadable: whether to refuse a plan with stages whose widths the model's config cannot say.
        options: of `growthring.Grower`, by name.

    Attributes:
        grower: of the run, from its beginning on.

    >>> import growthring as gr
    >>> from torch import ones
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> callback = GrowthCallback(gr.plan(net, ones(1, 4), total_steps=10), fade=0.2)
    >>> callback.grower is None  # there is no run yet
    True
    """

    def __init__(self, plan: Plan, loadable: bool = True, **options: Any) -> None:
        if not isinstance(plan, Plan):
            raise InputError(f"plan is a {type(plan).__name__}; pass what gr.plan(...) returned.")
        if {"model", "plan", "optimizer", "through", "shard", "osgd"} & set(options):
            raise InputError(
                "model, optimizer and what wraps the model or changes gradients are the Trainer's: leave them out."
            )
        self.plan, self.loadable, self.options = plan, loadable, options
        self.grower: Grower | None = None
        self.is_resumable = False  # a GrowthTrainer says so

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Makes the Grower, unless the Trainer has resumed and there is one."""
        is_judged = self.is_resumable and hasattr(Trainer, "_determine_best_metric")
        check_arguments(args, state, self.plan, self.loadable, is_judged)
        model = kwargs["model"]
        if not self.has_grower(model):
            if state.global_step:
                raise InputError(
                    f"the run goes on at step {state.global_step:,}, and nobody told at which stage the model is. "
                    f"Resume with {TRAINER} in place of the Trainer."
                )
            self.make_grower(model, kwargs["optimizer"])
            assert self.grower is not None
            if stage := self.grower.stage:
                self.grower = None
                raise InputError(
                    f"the run begins with a model of stage {stage} of the plan (the seed's is 0). Give the Trainer "
                    "plan.build_seed(); to go on from a checkpoint, trainer.train(resume_from_checkpoint=...)."
                )
        assert self.grower is not None
        step = self.grower.num_steps
        if step != state.global_step and not (self.grower.is_complete and step):
            raise InputError(
                f"the Trainer is at step {state.global_step:,}, the growth at step {step:,}. Start from "
                "plan.build_seed() with a new GrowthCallback, or resume from a checkpoint."
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Grows when the plan says so."""
        assert self.grower is not None
        self.grower.step()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Writes the growth into the checkpoint; a GrowthTrainer has done so before."""
        if not self.is_resumable:
            self.save(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"), args)

    def save(self, folder: str, args: Any) -> None:
        """Writes the growth into a folder, and says what in it is not plain."""
        assert self.grower is not None
        growth = self.grower.state_dict()
        if not args.should_save:
            return
        os.makedirs(folder, exist_ok=True)
        write_growth(os.path.join(folder, FILE), growth)
        if fading := len(self.grower.fading_norms):
            warnings.warn(
                f"'{folder}' is saved while {counted(fading, 'norm')} of the model fade in: resume_from_checkpoint "
                "goes on exactly, but what from_pretrained makes of it computes something else. For a plain model "
                "take a checkpoint from the end of a stage.",
                GrowthWarning,
                stacklevel=2,
            )

    def has_grower(self, model: nn.Module) -> bool:
        """Whether there is a Grower of this model, from an earlier `train()` or from resuming."""
        return self.grower is not None and self.grower.model is model

    def make_grower(self, model: nn.Module, optimizer: Any) -> None:
        """Makes the Grower of a run that begins, or goes on, with this model and optimizer."""
        wrapped = next(iter(live_wrappers(model)), model)
        self.grower = Grower(wrapped, self.plan, optimizer, **self.options)

    def resume(self, folder: str, model: nn.Module, optimizer: Any = None) -> None:
        """Takes up the growth of a checkpoint.

        Args:
            folder: of the checkpoint.
            model: gets the shapes that its weights have there.
            optimizer: if there is one yet: a Grower takes up the rest, before the optimizer's state is loaded.
        """
        path = os.path.join(folder, FILE)
        if optimizer is not None and not self.has_grower(model):
            self.make_grower(model, optimizer)
        if not self.has_grower(model):
            stage = check_saved(read_growth(path), self.plan, find_stage(model, self.plan))
            return take_shapes(model, self.plan, stage)
        assert self.grower is not None
        with self.grower.ranks.together():  # each has a disk of its own
            growth = read_growth(path)
        self.grower.load_state_dict(growth)


class GrowthMixin(_Base):
    """Lets a Trainer resume at any stage: `class MyTrainer(GrowthMixin, Trainer)`. It needs a `GrowthCallback`.

    The best checkpoint (`load_best_model_at_end`, `save_strategy="best"`, early stopping) is one of the model at
    its full size: losses of smaller ones do not count.
    """

    @property
    def growth(self) -> GrowthCallback:
        """The callback that grows the model."""
        found = [c for c in self.callback_handler.callbacks if isinstance(c, GrowthCallback)]
        if len(found) != 1:
            raise InputError(
                f"{type(self).__name__} has {counted(len(found), 'GrowthCallback')}; it needs one: "
                "callbacks=[GrowthCallback(plan)]."
            )
        return found[0]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's."""
        self.growth.is_resumable = True
        return super().train(*args, **kwargs)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        self.growth.resume(resume_from_checkpoint, self.model)
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self.growth.resume(checkpoint, self.model, self.optimizer)
        super()._load_optimizer_and_scheduler(checkpoint)

    def _save_checkpoint(self, model: nn.Module, trial: Any, *args: Any, **kwargs: Any) -> None:
        folder = f"checkpoint-{self.state.global_step}"
        self.growth.save(os.path.join(self._get_output_dir(trial), folder), self.args)
        with fades_are_saved():
            super()._save_checkpoint(model, trial, *args, **kwargs)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        grower = self.growth.grower
        is_complete = grower is None or grower.is_complete
        return is_complete and super()._determine_best_metric(metrics, trial)


class GrowthTrainer(GrowthMixin, Trainer):
    """The Trainer, which resumes at any stage."""
