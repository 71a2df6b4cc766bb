"""Trainer: Algorithm 1 of the paper, resumable bit for bit."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import math
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from growthring.checkpoint import (
    CheckpointError,
    JsonLines,
    discard_after,
    save_weights,
    write_checkpoint,
    write_json,
)
from growthring.checkpoint.jsontext import dumps, loads
from growthring.data.stream import BatchStream
from growthring.errors import GrowthError, InputError
from growthring.files.foreign import refuse_link
from growthring.growing.grower import Grower
from growthring.optim import RingOptimizer
from growthring.planning.costs import footprint
from growthring.train.beginning import beginning, set_aside
from growthring.train.config import SOURCE
from growthring.train.interrupt import Interrupt
from growthring.train.measure import Loss, OnDevice, batch_sums, evaluate
from growthring.train.memory import PeakMemory
from growthring.train.progress import Progress, Status
from growthring.train.recipe import Recipe, differences
from growthring.train.saved import (
    Saved,
    check_growth,
    check_plan,
    how_to_resume,
    open_run,
    totals_of,
)
from growthring.train.setup import (
    check,
    find_device,
    learning_rate,
    make_growth_method,
    make_model,
    make_optimizer,
    make_plan,
    make_streams,
    total_steps,
)
from growthring.train.state import Clock, Interrupted, Result, Totals, TrainingError
from growthring.train.trial import check_labels


class Trainer:
    """Trains a model by growing it (or, with `recipe.fixed`, at full size), and keeps everything in a folder.

    Args:
        recipe: the settings.
        out: folder of the run.
        model: makes the full-size model; by default the recipe's.
        train, test: batches of (inputs, targets); by default the recipe's data.
        loss: from outputs and targets to a scalar; by default cross entropy with the recipe's smoothing.
        data: folder of the recipe's data.
        download: fetch data that is missing.
        device: where to train.
        checkpoint_steps: write a checkpoint every so many steps, beside those at stage ends.
        checkpoint_minutes: and after so many minutes.
        keep: how many checkpoints stay.
        log_rates: record the rate factors of weights every so many steps; 0 does not.
        progress: what shows how far it is.
        source: how to find the recipe again, for `growthring train --resume`.
        tensorboard: also write TensorBoard events (needs the package).

    >>> import tempfile
    >>> from growthring.train.progress import Silence
    >>> from growthring.train.recipes import demo
    >>> from growthring.train.recipe import change
    >>> fast = {"epochs": 5, "stages": 2, "num_train": 64, "model_options.width": 4}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = Trainer(change(demo(), fast), folder, progress=Silence()).fit()
    >>> result.epochs, result.flops_share < 1
    (5, True)
    """

    def __init__(
        self,
        recipe: Recipe,
        out: str | Path,
        *,
        model: Callable[[], nn.Module] | None = None,
        train: BatchStream | None = None,
        test: BatchStream | None = None,
        loss: Loss | None = None,
        data: str | Path | None = None,
        download: bool = False,
        device: str | torch.device = "cpu",
        checkpoint_steps: int | None = None,
        checkpoint_minutes: float = 10.0,
        keep: int = 3,
        log_rates: int = 50,
        progress: Progress | None = None,
        source: dict[str, Any] | None = None,
        tensorboard: bool = False,
    ) -> None:
        self.recipe, self.out, self.device = recipe, Path(out), find_device(device)
        self.progress = progress or Progress()
        self._cadence = (checkpoint_steps, checkpoint_minutes * 60, keep)
        self._log_rates, self._source, self._tensorboard = log_rates, source or {}, tensorboard
        check(recipe)
        unknown = sorted(set(self._source) - set(SOURCE))
        if unknown:
            raise InputError(f"source has '{unknown[0]}'; it may have {', '.join(SOURCE)}.")
        if not checkpoint_minutes >= 0:
            raise InputError(f"checkpoint_minutes={checkpoint_minutes!r}: it is 0 or more.")
        if keep < 1 or (checkpoint_steps is not None and checkpoint_steps < 1):
            raise InputError(
                f"keep={keep!r}, checkpoint_steps={checkpoint_steps!r}: both are at least 1."
            )
        if tensorboard and importlib.util.find_spec("tensorboard") is None:
            raise InputError("tensorboard is not installed: pip install growthring[tensorboard].")
        generator = torch.Generator().manual_seed(recipe.seed)
        full = make_model(recipe, generator, model)
        if train is None:
            root = None if data is None else Path(data)
            streams = make_streams(recipe, root, generator, self.device, download)
            train, test = streams.train, streams.test if test is None else test
        self.train, self.test = train, test
        example = None if model is None else next(iter(train))[0][:2].cpu()
        train.rewind()
        self.plan = make_plan(recipe, full, example)
        if loss is None:
            inputs = torch.zeros(2, *recipe.input_shape) if example is None else example
            check_labels(full, inputs, (train, test))
        is_grown = not (recipe.fixed or recipe.small)
        # From here, as reading the data may take more than training; the weights that are there count.
        held = 0 if is_grown else sum(p.numel() * p.element_size() for p in full.parameters())
        self._memory = PeakMemory(self.device, held)
        # The plan's own model stays beside its example inputs, on the CPU: costs are counted on both.
        is_apart = self.device.type != "cpu"
        whole = copy.deepcopy(self.plan.model) if is_apart and not is_grown else self.plan.model
        self.model = (self.plan.build_seed() if is_grown else whole).to(self.device)
        self._full_model = full
        self.totals = Totals()
        self.total_steps = total_steps(self.plan, train)
        self.optimizer = make_optimizer(recipe, self.model, self.total_steps)
        self.loss = loss or nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
        if isinstance(self.loss, nn.Module):
            self.loss.to(self.device)  # weights of classes, say
        self.grower: Grower | None = None
        if is_grown:
            self.grower = Grower(
                self.model,
                self.plan,
                optimizer=self.optimizer,
                method=make_growth_method(recipe),
                noise=recipe.noise,
                generator=generator,
                batches=(lambda seed: OnDevice(train.fork(seed), self.device))
                if is_apart
                else train.fork,
                loss=self.loss,
            )
        self._sums = torch.zeros(
            3, dtype=torch.float64
        )  # loss, right answers, examples of the epoch
        self._forward: Any = None
        self._interrupt = Interrupt(self.progress.say)
        self._last_write = time.monotonic()

    # The run as a whole.

    def fit(self) -> Result:
        """Trains from where the run is to its end; Ctrl-C finishes the step, saves and raises `Interrupted`."""
        with beginning(self.out):
            if self._sets_aside:
                set_aside(self.out / "metrics.jsonl")
                self._sets_aside = False
            with JsonLines(self.out / "metrics.jsonl") as self._log:
                with self._interrupt:
                    self._begin()
                    while self.totals.stage < self.plan.num_stages:
                        self._stage()
                if self._interrupt.is_asked:  # after the last step; the last stage has saved
                    raise Interrupted(f"stopped before the end; {self._saved_words()}")
                return self._finish()

    def resume(self, saved: Saved | None = None, forget_metrics: bool = False) -> None:
        """Takes up the newest checkpoint of the run's folder; `fit` then goes on from there.

        Args:
            saved: the run as `open_run` found it; by default it is opened now.
            forget_metrics: go on though metrics.jsonl is damaged: it is set aside, and the log begins anew.

        Raises:
            InputError: the folder holds a run of another recipe; the differences are named.
            CheckpointError: the run is damaged, or not of this model; nothing in the folder was changed. Make
                a new Trainer before the next try.
        """
        if saved is None:
            saved = open_run(self.out, self.device, forget_metrics)
        config, found = saved.config, saved.checkpoint
        changed = differences(config.settings, self.recipe.as_dict())
        if changed:
            raise InputError(
                f"'{self.out}' was started with other settings ({'; '.join(changed)}). Resume it as it was, "
                "or start another run."
            )
        check_plan(config, self.plan, self.out)
        for path, reason in found.skipped:
            self.progress.say(
                f"checkpoint {path.name} cannot be used ({reason}); using the one before"
            )
        self._say_versions(config.versions)
        self._costs, self._config = config.plan, config.content  # counted when the run began
        totals = totals_of(found, self.plan)
        check_growth(found, self.plan, totals)
        try:
            self._take_up(found.state)
        except GrowthError:
            raise
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise CheckpointError(
                f"the checkpoint '{found.path}' does not fit this model: {type(error).__name__}: {error}. Nothing "
                "in the folder was changed."
            ) from error
        self.totals = totals
        self._sets_aside = saved.log is None
        self._resumed = (found.step, 0 if saved.log is None else saved.log.size)
        self._random_states = found.state["random"]

    def _take_up(self, state: Mapping[str, Any]) -> None:
        if (self.grower is None) != (state["grower"] is None):
            raise ValueError("it is of a run that grows, or this one is")
        if self.grower is not None:
            self.grower.load_state_dict(state["grower"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.train.load_state_dict(state["train"])
        torch.Generator().set_state(state["random"][0])  # refuses what is none, before fit uses it
        self._sums = state["sums"].cpu()

    def _say_versions(self, versions: Mapping[str, str]) -> None:
        began, now = versions.get("torch", torch.__version__), torch.__version__
        if began != now:
            self.progress.say(
                f"the run began with torch {began}, this is {now}: it goes on, but not bit for bit as it would have"
            )

    @property
    def costs(self) -> Mapping[str, Any]:
        """FLOPs of an example and parameters, as lists over stages; FLOPs of the full-size model."""
        if self._costs is None:
            found = self.plan.as_dict()
            full = found["flops"][-1]
            if self.recipe.small:
                full = footprint(self._full_model, self.plan.inputs_for(self._full_model)).flops
            self._costs = {**found, "full_flops": full}
        return self._costs

    _costs: Mapping[str, Any] | None = None
    _config: Mapping[str, Any] | None = None
    _resumed: tuple[int, int] | None = None
    _random_states: list[Tensor]
    _sets_aside = False

    def _begin(self) -> None:
        """Writes what the run is, and a first checkpoint; or goes back to where a resumed one was."""
        if self._resumed is not None:
            step, position = self._resumed
            discard_after(self.out, step)
            self._log.truncate(position)
            _set_random(self._random_states, self.device)
            self.progress.say(f"resuming at stage {self.totals.stage}, step {step}")
            return
        if (self.out / "config.json").exists():
            raise InputError(
                f"'{self.out}' already holds a run. Go on with `{how_to_resume(self.out, self._source)}`, or "
                "choose another folder."
            )
        torch.manual_seed(self.recipe.seed)  # dropout and the like draw from torch's own generator
        config = {
            "name": self.recipe.name,
            "fixed": self.recipe.fixed,
            "seed": self.recipe.seed,
            "settings": self.recipe.as_dict(),
            "source": self._source,
            "plan": self.costs,
            "machine": f"{platform.machine()} {platform.system()}, {torch.get_num_threads()} threads, "
            f"{self.device}",
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
        }
        self._config = loads(dumps(config))  # as it will be read
        self._save()  # before config.json, so that what looks like a run can be resumed
        write_json(self.out / "config.json", config)

    def _stage(self) -> None:
        """The epochs of one stage, then the growth to the next."""
        totals, recipe = self.totals, self.recipe
        stage = totals.stage
        self.train.set_batch_size(self.plan.batch_sizes[stage])
        if recipe.compile:
            torch.compiler.reset()  # else all stages share one limit of recompilations
        self._forward = torch.compile(self.model) if recipe.compile else self.model
        while totals.epochs_in_stage < self.plan.epochs[stage]:
            self._epoch()
            totals.epochs_in_stage += 1
        last = stage == self.plan.num_stages - 1
        clock = Clock()
        if self.grower is not None:
            self.grower.finish()
            if self.grower.method.searches and not last:
                self.progress.say(
                    f"{recipe.method} searches for the units of stage {stage + 1} ..."
                )
        report = self.grower.grow() if self.grower is not None and not last else None
        clock.add_to(totals)
        totals.stage, totals.epochs_in_stage, totals.steps_in_stage = stage + 1, 0, 0
        if report is not None:
            totals.search_flops += report.search_flops
        if report is not None:
            change = None if report.change is None else report.change.relative_after_scale
            self._log.append(
                {
                    "kind": "growth",
                    "stage": stage + 1,
                    "step": totals.step,
                    "epoch": totals.epoch,
                    "seconds": report.seconds,
                    "search_flops": report.search_flops,
                    "change": change,
                    "parameters": report.parameters_after,
                    "widths": self.plan.named_widths(stage + 1),
                }
            )
        self._save()

    def _epoch(self) -> None:
        """The rest of the present epoch, its evaluation and its line in the log."""
        totals, recipe = self.totals, self.recipe
        steps_in_stage = self.plan.epochs[totals.stage] * len(self.train)
        factor = self.plan.rate_factors[totals.stage]
        flops = self.costs["flops"][totals.stage]
        self.model.train()
        clock = Clock()
        rate = learning_rate(recipe, max(totals.step - 1, 0), self.total_steps) * factor
        for inputs, targets in OnDevice(self.train, self.device):
            rate = learning_rate(recipe, totals.step, self.total_steps) * factor
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            if self.grower is not None:
                self.grower.advance(min(1.0, totals.steps_in_stage / max(steps_in_stage, 1)))
            self._step(inputs, targets)
            totals.step += 1
            totals.steps_in_stage += 1
            totals.examples_flops += flops * len(targets)
            clock.add_to(totals)
            self.progress.step(self._status())
            self._watch()
            clock = Clock()
        record = self._record(rate)
        totals.epoch += 1
        self._sums.zero_()
        self._log.append(record)
        self._write_tensorboard(record)
        is_last = totals.epochs_in_stage + 1 == self.plan.epochs[totals.stage]
        self.progress.epoch(record, self._width(), is_last)

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        """Forward, backward, update; nothing is updated if the loss is not finite."""
        recipe = self.recipe
        with self._precision():
            outputs = self._forward(inputs)
            try:
                loss = self.loss(outputs, targets)
            except IndexError as error:  # "Target 10 is out of bounds."
                raise TrainingError(
                    f"step {self.totals.step}, stage {self.totals.stage} failed: {error} Labels count from 0 and "
                    "stay below the number of outputs. Nothing of this step was applied; the last checkpoint in "
                    f"'{self.out}' is from before."
                ) from error
        if self.device.type == "cpu" or self.totals.step % 20 == 0:
            value = float(loss.detach())
            if not math.isfinite(value):
                self._fail(value, inputs)
        self.optimizer.zero_grad()
        loss.backward()
        if recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip_norm)
        self.optimizer.step()
        self._sums += batch_sums(loss, outputs, targets)

    # Evaluation and records.

    def evaluate(self) -> tuple[float | None, float | None]:
        """Loss and accuracy (0 to 1) on the test data; None where there is none."""
        if self.test is None:
            return None, None
        return evaluate(self.model, self.test, self.loss, self._precision, self.device)

    def _record(self, rate: float) -> dict[str, Any]:
        totals = self.totals
        loss_sum, right, examples = self._sums.tolist()
        if not examples:
            raise TrainingError(
                f"epoch {totals.epoch} had no examples: the stream of batches gave none. The last checkpoint in "
                f"'{self.out}' is from before."
            )
        test_loss, test_accuracy = self.evaluate()
        return {
            "kind": "epoch",
            "epoch": totals.epoch,
            "stage": totals.stage,
            "step": totals.step,
            "lr": rate,
            "train_loss": loss_sum / examples,
            "train_accuracy": None if math.isnan(right) else right / examples,
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
            "seconds": totals.seconds,
            "flops": totals.flops,
            "flops_share": self._flops_share(),
            "batch_size": self.train.batch_size,
        }

    def _flops_share(self) -> float:
        one = self.costs.get("full_flops", self.costs["flops"][-1])
        full = 3 * one * self.train.num_examples * sum(self.plan.epochs)
        return self.totals.flops / full if full else 1.0

    def _width(self) -> str:
        if self.grower is None:
            return "the seed's size" if self.recipe.small else "full size"
        named = self.plan.named_widths(min(self.totals.stage, self.plan.num_stages - 1))
        return f"width {min(named.values())}–{max(named.values())}"

    def _status(self) -> Status:
        totals = self.totals
        loss_sum, _, examples = self._sums.tolist() if self.device.type == "cpu" else (0, 0, 1)
        return Status(
            totals.stage,
            self.plan.num_stages,
            totals.epoch,
            sum(self.plan.epochs),
            totals.step,
            self.total_steps,
            self._width(),
            loss_sum / max(examples, 1),
            totals.seconds,
            self._flops_share(),
        )

    def _watch(self) -> None:
        """After a step: the record of rates, checkpoints that are due, Ctrl-C."""
        step = self.totals.step
        every, seconds, _ = self._cadence
        if self._log_rates and step % self._log_rates == 0 and self._rings is not None:
            found = self._rings.rate_factors()
            factors = {n: f.tolist() for n, f in found.items() if len(f) > 1}
            weights = {n: f for n, f in factors.items() if any(abs(v - f[0]) > 1e-12 for v in f)}
            self._log.append(
                {"kind": "rates", "step": step, "stage": self.totals.stage, "factors": weights}
            )
        is_due = bool(every) and step % (every or 1) == 0
        if is_due or time.monotonic() - self._last_write > seconds or self._interrupt.is_asked:
            self._save()
        if self._interrupt.is_asked:
            raise Interrupted(f"stopped after step {step}; {self._saved_words()}")

    def _saved_words(self) -> str:
        return f"everything is saved. Go on with: {how_to_resume(self.out, self._source)}"

    # Keeping.

    def _save(self) -> None:
        found = self._memory.read()
        if found is not None:  # a resumed run has used memory in another process too
            self.totals.peak_memory = max(found, self.totals.peak_memory or 0)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "grower": None if self.grower is None else self.grower.state_dict(),
            "train": self.train.state_dict(),
            "totals": asdict(self.totals),
            "sums": self._sums,
            "random": _random(self.device),
            "metrics": asdict(self._log.mark()),
            "config": self._config,
        }
        self._check_weights()
        write_checkpoint(self.out, state, self.totals.step, keep=self._cadence[2])
        self._last_write = time.monotonic()

    def _check_weights(self) -> None:
        """Weights that are not finite must not replace a checkpoint of ones that are."""
        bad = [n for n, p in self.model.named_parameters() if not bool(torch.isfinite(p).all())]
        if bad:
            raise TrainingError(
                f"'{bad[0]}' is not finite after step {self.totals.step}, stage {self.totals.stage}. The last "
                f"checkpoint in '{self.out}' is from before. Try a smaller lr, warmup_steps or clip_norm."
            )

    def _finish(self) -> Result:
        loss, accuracy = self.evaluate()
        result = Result(
            test_accuracy=accuracy,
            test_loss=loss,
            seconds=self.totals.seconds,
            cpu_seconds=self.totals.cpu_seconds,
            flops=self.totals.flops,
            flops_share=self._flops_share(),
            search_flops=self.totals.search_flops,
            peak_memory=self.totals.peak_memory,
            steps=self.totals.step,
            epochs=self.totals.epoch,
            parameters=self.costs["parameters"][-1],
        )
        save_weights(self.out / "model.safetensors", self.model.state_dict())
        write_json(self.out / "result.json", asdict(result))
        return result

    def _fail(self, value: float, inputs: Tensor) -> None:
        """A loss that is not finite ends the run; the last checkpoint is from before."""
        if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
            raise TrainingError(
                f"the loss is {value} at step {self.totals.step}, stage {self.totals.stage}, as the inputs of that "
                "step are not finite: the data has NaN or infinities. Nothing of this step was applied; the last "
                f"checkpoint in '{self.out}' is from before."
            )
        norms = ""
        if self._rings is not None:
            found = self._rings.weight_norms()
            shown = {n: [round(v, 3) for v in f.tolist()] for n, f in list(found.items())[:4]}
            norms = f" Ring norms of the first parameters: {shown}."
        raise TrainingError(
            f"the loss is {value} at step {self.totals.step}, stage {self.totals.stage}, learning rate "
            f"{self.optimizer.param_groups[0]['lr']:.3g}.{norms} Nothing of this step was applied; the last "
            f"checkpoint in '{self.out}' is from before. Try a smaller lr, warmup_steps or clip_norm."
        )

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.recipe.precision == "float32":
            return contextlib.nullcontext()
        if self.recipe.precision != "bfloat16":
            raise InputError(f"precision='{self.recipe.precision}' is not 'float32' or 'bfloat16'.")
        return torch.autocast(self.device.type, torch.bfloat16)

    @property
    def _rings(self) -> RingOptimizer | None:
        is_ringed = self.grower is not None and isinstance(self.optimizer, RingOptimizer)
        return self.optimizer if is_ringed else None  # type: ignore[return-value]

    def _write_tensorboard(self, record: dict[str, Any]) -> None:
        if not self._tensorboard:
            return
        from torch.utils.tensorboard import SummaryWriter

        refuse_link(self.out / "tensorboard")
        with SummaryWriter(str(self.out / "tensorboard")) as writer:
            for key, value in record.items():
                if isinstance(value, float):
                    writer.add_scalar(key, value, record["step"])


def _random(device: torch.device) -> list[Tensor]:
    """State of torch's own generators, which dropout draws from."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _set_random(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
