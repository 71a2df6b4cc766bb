"""Growing with Accelerate: a step where the optimizer took one, and shapes before weights in `load_state`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import nn

from growthring.distributed.wrapping import live_wrappers, unwrapped
from growthring.errors import InputError, UnsupportedModelError
from growthring.growing.grower import Grower
from growthring.growing.pace import StepReport
from growthring.integrations.saved import FILE, read_growth, write_growth
from growthring.optim.held import held_optimizers
from growthring.optim.prepared import plain_optimizer

try:
    from accelerate import Accelerator  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError(
        "growthring.integrations.accelerate needs Accelerate: pip install 'growthring[accelerate]'"
    ) from error

_PLAIN = ("NO", "MULTI_")  # one process, or DistributedDataParallel on whatever device


def prepare(accelerator: Accelerator, grower: Grower) -> PreparedGrower:
    """Lets a model that `accelerator.prepare` has prepared grow; the `Grower` may be older or younger than that.

    From now on `accelerator.save_state` and `load_state` keep the growth beside weights and optimizer states.

    Args:
        accelerator: whose `prepare` was given the model and its optimizers.
        grower: of that model and these optimizers.

    Returns:
        What the training loop calls `step()` of.

    Raises:
        InputError: the model or an optimizer of it was not prepared, or the Grower does not know it.
        UnsupportedModelError: the accelerator cuts models into pieces, or trains them in fp8.

    >>> import torch, growthring as gr
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = gr.plan(net, torch.ones(1, 4), total_steps=10)
    >>> accelerator = Accelerator(cpu=True)
    >>> model = plan.build_seed()
    >>> model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> growth = prepare(accelerator, gr.Grower(model, plan, optimizer))
    >>> for _ in range(10):
    ...     loss = model(torch.ones(3, 4)).square().mean()
    ...     _ = optimizer.zero_grad(), accelerator.backward(loss), optimizer.step()
    ...     if growth.step():
    ...         print(model[0].out_features)
    8
    """
    if not isinstance(accelerator, Accelerator):
        raise InputError(f"accelerator is a {type(accelerator).__name__}, not an Accelerator.")
    if not isinstance(grower, Grower):
        raise InputError(f"grower is a {type(grower).__name__}; pass gr.Grower(model, plan, ...).")
    _check_whole(accelerator)
    return PreparedGrower(accelerator, grower)


class PreparedGrower:
    """A Grower that keeps the time of an `Accelerator`; `prepare` makes it.

    Attributes:
        grower: the Grower.
    """

    def __init__(self, accelerator: Accelerator, grower: Grower) -> None:
        self.grower, self._accelerator = grower, accelerator
        number = self._number()
        self._check_optimizers()
        self._file = FILE if number == 0 else FILE.replace(".", f"_{number}.")
        # the accelerator itself keeps the module inside
        for wrapper in live_wrappers(grower.model):
            grower.attach(wrapper)
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)

    def step(self) -> StepReport | None:
        """Once for each batch, after `optimizer.step()`: `Grower.step` if that was a step.

        None is taken while gradients are accumulated (`accelerator.accumulate`), or where fp16's scaler skips it.

        Returns:
            What happened; None where no step was taken.
        """
        accelerator = self._accelerator
        if not accelerator.sync_gradients or accelerator.optimizer_step_was_skipped:
            return None
        return self.grower.step()

    def _number(self) -> int:
        """Which of the accelerator's models it is."""
        for number, model in enumerate(self._accelerator._models):
            if unwrapped(model) is self.grower.model:
                return number
        raise InputError(
            "the accelerator has not prepared the model that grows: call accelerator.prepare(model, optimizer) "
            "before, with plan.build_seed() as the model."
        )

    def _check_optimizers(self) -> None:
        """Refuses optimizers that would be saved and not grow, or grow and not be saved."""
        known = {id(one) for one in self.grower.optimizers}
        own = {id(p) for p in self.grower.model.parameters()}
        prepared = [plain_optimizer(one) for one in self._accelerator._optimizers]
        for one in prepared:
            held = (id(p) for group in one.param_groups for p in group["params"])
            if id(one) not in known and any(p in own for p in held):
                raise InputError(
                    f"the {type(one).__name__} that the accelerator prepared is not the Grower's: its state would "
                    "not grow. Pass it: gr.Grower(model, plan, optimizer)."
                )
        covered = {id(one) for each in prepared for one in (each, *held_optimizers(each))}
        for one in self.grower.optimizers:
            if id(one) not in covered:
                raise InputError(
                    f"the accelerator has not prepared the Grower's {type(one).__name__}: it would step at every "
                    "batch, and its state would not be saved. Pass it to accelerator.prepare."
                )

    def _save(self, models: Sequence[nn.Module], weights: Any, output_dir: str) -> None:
        state, accelerator = self.grower.state_dict(), self._accelerator
        on_each_node = accelerator.project_configuration.save_on_each_node
        if accelerator.is_local_main_process if on_each_node else accelerator.is_main_process:
            write_growth(os.path.join(output_dir, self._file), state)

    def _load(self, models: Sequence[nn.Module], input_dir: str) -> None:
        with self.grower.ranks.together():  # each has a disk of its own
            growth = read_growth(os.path.join(input_dir, self._file))
        self.grower.load_state_dict(growth)


def _check_whole(accelerator: Accelerator) -> None:
    """Refuses accelerators whose models are in pieces, or not in numbers that can be widened."""
    kind = accelerator.distributed_type.name
    if not (kind == _PLAIN[0] or kind.startswith(_PLAIN[1])):
        raise UnsupportedModelError(
            f"the accelerator trains with {kind}, whose models `load_state` loads before anybody can give them "
            "their shapes. Use DistributedDataParallel (accelerate launch --multi_gpu or --multi_cpu)."
        )
    if accelerator.mixed_precision == "fp8":
        raise UnsupportedModelError(
            "the accelerator trains in fp8, with layers of another library whose packed weights cannot be widened. "
            "Use mixed_precision='bf16'."
        )
    if getattr(getattr(accelerator, "parallelism_config", None), "tp_enabled", False):
        raise UnsupportedModelError(
            "the accelerator cuts layers into pieces (tensor parallelism), which cannot be widened. Use "
            "DistributedDataParallel."
        )
