"""advise: short pilots of a run at full size and grown, before the run is paid for."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import operator
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from growthring.data.batch import Batch, checked_batch, moved
from growthring.errors import GrowthWarning, InputError, PlanError
from growthring.graph.trace import ExampleInputs
from growthring.growing.grower import Grower
from growthring.methods.base import Loss
from growthring.planning.options import PlanOptions
from growthring.planning.plan import Plan
from growthring.planning.planner import plan
from growthring.planning.schedule import is_number
from growthring.planning.timing import clock_of
from growthring.train.advice import Advice, Pilot, conclude
from growthring.train.lr_schedules import lr_schedule
from growthring.train.measure import apply
from growthring.train.progress import Progress, Silence

GROWING_DATA = (
    "pilots see all of the data from the start, so they tell nothing of a run on data that grows with the stages. "
    "Leave that out (stage_examples=, classes=, stream=), or compare runs of the whole length (growthring compare)."
)
_LEAST_STEPS = 20  # a shorter pilot shows the first steps' noise and nothing else
_HELD_OUT = 50  # batches that a pilot is judged by, at most

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def advise(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    batches: Iterable[Batch],
    loss: Loss,
    optimizer: MakeOptimizer,
    total_steps: int,
    held_out: Iterable[Batch] | None = None,
    share: float = 0.05,
    seeds: int = 2,
    lr_kind: str = "wsd",
    warmup: float = 0.02,
    clip_norm: float | None = None,
    progress: Progress | None = None,
    options: PlanOptions | None = None,
    **changes: Any,
) -> Advice:
    """Tells by short pilots whether growing a model pays, and what it would save.

    Each pilot trains the full network for n steps, the same for as many steps as cost what growing costs, and the
    grown one for n steps, each with its own learning-rate schedule that ends with it. There are pilots of two
    lengths, the second twice the first, and `seeds` of each.

    Args:
        model: the full-size model; it is only read.
        example_inputs: as for `gr.plan`.
        batches: (inputs, targets) for training, gone over again and again.
        loss: `loss(outputs, targets)`, a mean over the batch.
        optimizer: makes an optimizer for parameters, at the peak learning rate.
        total_steps: optimizer steps of the run in question.
        held_out: batches that tell how good a pilot is; by default the first of `batches`.
        share: what all pilots together may cost, as a share of the full-size run.
        seeds: orders of batches (where `batches` are shuffled by torch's generator) per length, at least 1.
        lr_kind: schedule of the learning rate, see `gr.lr_schedule`.
        warmup: share of a run over which the rate rises.
        clip_norm: gradients are clipped to this norm, if the run's are.
        progress: what shows how far it is.
        options: of the plan.
        changes: options of the plan by name.

    Returns:
        A plan with its expected saving, or "train at full size"; `print` it.

    Raises:
        InputError: the run is too short for pilots of this share.

    >>> data = [
    ...     (x, 3 * x) for x in torch.randn(20, 8, 4, generator=torch.Generator().manual_seed(0))
    ... ]
    >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> advice = advise(
    ...     net,
    ...     torch.ones(1, 4),
    ...     batches=data,
    ...     loss=nn.functional.mse_loss,
    ...     total_steps=4000,
    ...     share=0.1,
    ...     optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    ... )
    >>> len(advice.pilots)
    4
    """
    progress = progress or Silence()
    whole = plan(model, example_inputs, options=options, **{**changes, "total_steps": total_steps})
    if whole.num_stages < 2:
        raise PlanError("the plan has one stage: there is no growth to advise on.")
    if whole.data_shares or whole.classes:
        raise InputError(GROWING_DATA)
    lengths = _pilot_lengths(total_steps, share, seeds, whole)
    schedule = functools.partial(_schedule, lr_kind, warmup)
    trial = _Trial(model, batches, loss, optimizer, held_out, schedule, clip_norm)
    pilots, spent = [], 0.0
    plans = [
        plan(model, example_inputs, options=options, **{**changes, "total_steps": steps})
        for steps in lengths
    ]
    for (steps, own), seed in itertools.product(zip(lengths, plans, strict=True), range(seeds)):
        fewer = math.ceil(own.flops_share * steps)
        progress.say(f"pilot of {steps:,} steps, seed {seed} ...")
        full, (full_seconds,) = trial.run(None, steps, seed)
        rival, _ = trial.run(None, fewer, seed)
        grown, seconds = trial.run(own, steps, seed)
        # growing itself is left out: it takes as long in a pilot as in the run, of which it is a far smaller share
        mean = math.fsum(map(operator.mul, own.shares, seconds))
        pilots.append(Pilot(steps, seed, full, rival, grown, mean / full_seconds))
        spent += (steps + fewer + own.flops_share * steps) / total_steps
    return conclude(whole, pilots, spent)


def _pilot_lengths(total_steps: int, share: float, seeds: int, plan: Plan) -> tuple[int, int]:
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise InputError(f"seeds={seeds!r} is not a whole number, at least 1.")
    if not is_number(share) or not 0 < share <= 1:
        raise InputError(f"share={share!r}: pilots cost a share of the run, above 0 and at most 1.")
    each = share * total_steps / seeds / (1 + 2 * plan.flops_share)  # steps of both lengths
    steps = math.floor(each / 3)
    if steps < _LEAST_STEPS:
        needed = math.ceil(3 * _LEAST_STEPS * seeds * (1 + 2 * plan.flops_share) / share)
        raise InputError(
            f"a run of {total_steps:,} steps leaves {max(steps, 0)} steps for the shorter pilots, too few to tell "
            f"anything (at least {_LEAST_STEPS}). Pass a larger share= (of {share} now) or fewer seeds=; or just "
            f"train: pilots at this share are for runs of {needed:,} steps or more."
        )
    return steps, 2 * steps


def _schedule(kind: str, warmup: float, steps: int) -> Callable[[int], float]:
    """The schedule of a pilot of so many steps."""
    if not is_number(warmup) or not 0 <= warmup <= 1:
        raise InputError(f"warmup={warmup!r}: the rate rises over a share of the run, 0 to 1.")
    return lr_schedule(kind, steps, warmup_steps=math.ceil(warmup * steps))


class _Trial:
    """Trains copies of one model."""

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Batch],
        loss: Loss,
        optimizer: MakeOptimizer,
        held_out: Iterable[Batch] | None,
        schedule: Callable[[int], Callable[[int], float]],
        clip_norm: float | None,
    ) -> None:
        if iter(batches) is batches:
            raise InputError(
                "batches can be gone over once only (an iterator); pass something that starts anew, such as a "
                "DataLoader or a list."
            )
        self._model, self._batches, self._loss = model, batches, loss
        self._optimizer, self._schedule, self._clip_norm = optimizer, schedule, clip_norm
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._clock = clock_of(model)
        source = batches if held_out is None else held_out
        self._held_out = list(itertools.islice(source, _HELD_OUT))
        if not self._held_out:
            raise InputError("there are no batches to judge a pilot by.")

    def run(self, plan: Plan | None, steps: int, seed: int) -> tuple[float, list[float]]:
        """Loss on what was held out after so many steps, and the seconds of a step at each stage."""
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", GrowthWarning)
            torch.manual_seed(seed)
            model = copy.deepcopy(self._model) if plan is None else plan.build_seed()
            model.train()
            optimizer = self._optimizer(model.parameters())
            grower = None if plan is None else Grower(model, plan, optimizer=optimizer)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self._schedule(steps))
            torch.manual_seed(seed)  # the same order of batches for all
            taken: list[list[float]] = [[]]
            for inputs, targets in itertools.islice(self._forever(self._batches), steps):
                began = self._now()
                optimizer.zero_grad()
                self._loss(apply(model, inputs), targets).backward()
                if self._clip_norm is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), self._clip_norm)
                optimizer.step()
                scheduler.step()
                taken[-1].append(self._now() - began)
                if grower is not None and grower.step().growth is not None:
                    taken.append([])
            if grower is not None:
                grower.finish()
            # the median, as other work on the machine may have slowed some steps
            return self._judge(model), [statistics.median(times) for times in taken]

    def _now(self) -> float:
        """Seconds, once all work so far is done."""
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        return self._clock()

    @torch.no_grad()
    def _judge(self, model: nn.Module) -> float:
        model.eval()
        held_out = (moved(checked_batch(b, "held_out"), self._device) for b in self._held_out)
        losses = [float(self._loss(apply(model, inputs), targets)) for inputs, targets in held_out]
        return math.fsum(losses) / len(losses)

    def _forever(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        while True:
            is_empty = True
            for batch in batches:
                is_empty = False
                yield moved(checked_batch(batch, "batches"), self._device)
            if is_empty:
                raise InputError("batches is empty: there is nothing to train on.")
