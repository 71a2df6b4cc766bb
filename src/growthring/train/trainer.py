"""Trainer: a loop whose run is kept in a folder, and taken up again bit for bit."""

from __future__ import annotations

import importlib.util
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from growthring.checkpoint.jsontext import dumps, loads
from growthring.data.given import Data
from growthring.data.randomness import seed_shared_random
from growthring.errors import InputError
from growthring.methods.base import Loss
from growthring.runs import EpochRecord, Result, RunFolder
from growthring.runs.metrics import ACCURACY, LOSS
from growthring.runs.records import LogRecord
from growthring.runs.results import finished_result
from growthring.runs.shared import SharedFolder
from growthring.streams import GrowingData
from growthring.train.card import describe_training
from growthring.train.config import SOURCE
from growthring.train.crew import Crew
from growthring.train.interrupt import Interrupt
from growthring.train.loop import Loop
from growthring.train.parts import assemble, new_config
from growthring.train.processes import Processes, local_device
from growthring.train.progress import Progress, Silence
from growthring.train.recipe import Recipe, change, differences
from growthring.train.resuming import check_finite_weights, set_random, state_of, take_up
from growthring.train.saved import Saved, how_to_resume, open_run
from growthring.train.seen import with_forgetting
from growthring.train.setup import check, find_device
from growthring.train.sharing import check_shareable
from growthring.train.state import Interrupted
from growthring.train.tasks import Outcome


class Trainer(Loop):
    """Trains a model by growing it (or, with `recipe.fixed`, at full size), and keeps everything in a folder.

    Args:
        recipe: the settings.
        out: folder of the run.
        model: makes the full-size model, without arguments; by default the recipe's.
        train, test: a data set of (input, target), of which batches are made; or a DataLoader or another iterable
            of (inputs, targets), whose batches stay as they are. Inputs are a tensor, a tuple of positional
            arguments or a dict of keywords. By default the recipe's data. For training also data that grows with
            the stages, see `growthring.streams`.
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
        compile: in place of the recipe's.

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
        train: Data | GrowingData | None = None,
        test: Data | None = None,
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
        compile: bool | Literal["auto", "always", "never"] | None = None,
    ) -> None:
        if compile is not None:
            recipe = change(recipe, {"compile": compile})
        place = find_device(local_device(device))
        processes = Processes(place)
        self.folder = RunFolder(out) if processes.is_alone else SharedFolder(out, processes)
        self._cadence = (checkpoint_steps, checkpoint_minutes * 60, keep)
        self._log_rates, self._source, self._tensorboard = log_rates, source or {}, tensorboard
        check(recipe)
        self._check_options(checkpoint_minutes)
        given = train.whole if isinstance(train, GrowingData) else train
        check_shareable(processes, recipe, train=given, test=test)
        progress = (progress or Progress()) if processes.is_first else Silence()
        parts = assemble(
            recipe,
            place,
            processes,
            model=model,
            train=train,
            test=test,
            loss=loss,
            data=data,
            download=download,
            say=progress.say,
        )
        super().__init__(parts, progress)
        self._files = parts.task.files(parts.test)
        self._card = describe_training(
            parts.recipe,
            parts.test,
            parts.plan.example_inputs,
            model=model,
            has_own_data=train is not None or test is not None,
            has_own_loss=loss is not None,
            task=parts.task.name,
            files=self._files,
        )
        self._config: Mapping[str, Any] | None = None  # as config.json has it
        self._resumed: Saved | None = None
        asking = (signal.SIGINT,) if processes.is_alone else (signal.SIGINT, signal.SIGTERM)
        self._crew = Crew()
        self._interrupt = Interrupt(self.progress.say, asking)
        self._last_write = time.monotonic()

    def _check_options(self, minutes: float) -> None:
        unknown = sorted(set(self._source) - set(SOURCE))
        if unknown:
            raise InputError(f"source has '{unknown[0]}'; it may have {', '.join(SOURCE)}.")
        if not minutes >= 0:
            raise InputError(f"checkpoint_minutes={minutes!r}: it is 0 or more.")
        steps, _, keep = self._cadence
        if keep < 1 or (steps is not None and steps < 1):
            raise InputError(f"keep={keep!r}, checkpoint_steps={steps!r}: both are at least 1.")
        if self._tensorboard and importlib.util.find_spec("tensorboard") is None:
            raise InputError("tensorboard is not installed: pip install growthring[tensorboard].")

    @property
    def out(self) -> Path:
        """The folder of the run."""
        return self.folder.path

    def fit(self) -> Result:
        """Trains from where the run is to its end; Ctrl-C finishes the step, saves and raises `Interrupted`.

        Returns:
            What the run came to. One that was finished when it was resumed is not trained again.
        """
        has_log = self._resumed is not None and self._resumed.log is not None
        result = None
        if has_log and self.is_done:
            result = self.processes.from_first(lambda: finished_result(self.out))
        if result is not None:
            self.progress.say(
                f"'{self.out}' is finished: {self.sentence(result)}. Nothing is left to train; the weights are in "
                f"'{self.folder.weights_file}'."
            )
            return result
        with_new_log = self._resumed is not None and self._resumed.log is None
        with self.folder.at_work(with_new_log):
            with self._interrupt:
                self._begin()
                self.run_stages()
            if self._is_asked:  # after the last step; the last stage has saved
                raise Interrupted(f"stopped before the end; {self._saved_words()}")
            try:
                return self._finish()
            except KeyboardInterrupt:
                words = self._saved_words()
                raise Interrupted(f"stopped while the result was measured; {words}") from None

    def sentence(self, result: Result) -> str:
        """What the run came to, by the metric of its task."""
        return result.sentence(self.parts.task.metrics)

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
            saved = self.processes.from_first(
                lambda: open_run(self.out, self.device, forget_metrics)
            )
        changed = differences(saved.config.settings, self.recipe.as_dict())
        if changed:
            raise InputError(
                f"'{self.out}' was started with other settings ({'; '.join(changed)}). Resume it as it was, "
                "or start another run."
            )
        self.account.costs, self._config = saved.config.plan, saved.config.content
        self.account.totals = take_up(self, saved)
        self.processes.pool(self.totals, is_new=True)
        self._resumed = saved

    def _begin(self) -> None:
        """Writes what the run is, and a first checkpoint; or goes back to where a resumed one was."""
        if self._resumed is not None:
            checkpoint, log = self._resumed.checkpoint, self._resumed.log
            self.folder.go_back_to(checkpoint.step, 0 if log is None else log.size)
            set_random(checkpoint.state, self.device)
            own = checkpoint.state.get("own_random")
            self._crew = Crew(checkpoint.state.get("crew", ()))
            self._crew.join(checkpoint.step, self.processes.size)
            self.processes.draws.begin(self.recipe.seed, checkpoint.step, own)
            where = "after the last stage" if self.is_done else f"at stage {self.totals.stage}"
            self.progress.say(f"resuming {where}, step {checkpoint.step}")
            return
        if self.folder.is_run:
            raise InputError(
                f"'{self.out}' already holds a run. Go on with `{how_to_resume(self.out, self._source)}`, or "
                "choose another folder."
            )
        torch.manual_seed(self.recipe.seed)  # dropout and the like draw from torch's own generators
        seed_shared_random(self.recipe.seed)  # and augmentation from Python's and numpy's, too
        self.processes.draws.begin(self.recipe.seed)
        self._crew.join(0, self.processes.size)
        place = self.device.type if self.processes.size > 1 else self.device
        where = f"{place}{self.processes.words}"
        config = new_config(self.parts, self.account.costs, self._card, self._source, where)
        self._config = loads(dumps(config))  # as it will be read
        self._save()
        for name, text in self._files.items():
            self.folder.write_file(name, text)
        self.folder.begin(config)

    def note(self, record: LogRecord) -> None:
        """Adds a record to the log."""
        self.folder.append(record)
        if self._tensorboard and isinstance(record, EpochRecord):
            self.folder.write_events(record)

    def after_step(self) -> None:
        """The record of rates, checkpoints that are due, Ctrl-C."""
        step = self.totals.step
        every, seconds, _ = self._cadence
        if self._log_rates and step % self._log_rates == 0 and self.rings is not None:
            rates = self.account.rates(self.rings)
            if rates.factors:  # all rings may have one rate
                self.note(rates)
        is_due = bool(every) and step % (every or 1) == 0
        is_late = time.monotonic() - self._last_write > seconds
        is_late, is_asked = self.processes.any_of(is_late, self._interrupt.is_asked)
        if is_due or is_late or is_asked:
            self._save()
        if is_asked:
            raise Interrupted(f"stopped after step {step}; {self._saved_words()}")

    def in_pass(self) -> None:
        """Ctrl-C: the pass begins anew when the run goes on."""
        if self._is_asked:
            words = self._saved_words()
            raise Interrupted(
                f"stopped in the pass over the data of stage {self.totals.stage}; {words}"
            )

    def after_stage(self) -> None:
        """A checkpoint."""
        self._save()

    # What is compiled decides how a run goes on; and a pass may be long.
    after_choices = before_pass = after_stage

    def _save(self) -> None:
        self.processes.pool(self.totals)
        peak = self.parts.memory.read()
        if peak is not None:  # a resumed run has used memory in another process too
            self.totals.peak_memory = max(peak, self.totals.peak_memory or 0)
        state = {
            **state_of(self),
            "metrics": asdict(self.folder.mark()),
            "config": self._config,
            **({"crew": self._crew.state} if self._crew.state else {}),
        }
        check_finite_weights(self, self._kept())
        self.folder.save(state, self.totals.step, self._cadence[2])
        self._last_write = time.monotonic()

    def _finish(self) -> Result:
        test = self.evaluate()
        outcome = self.processes.from_first(self._outcome)
        outcome = replace(outcome, notes=(*outcome.notes, *self.compilation.notes))
        result = self.processes.from_first(lambda: self.account.result(test, outcome))
        result = replace(result, notes=(*result.notes, *self._crew.notes))
        result = self.processes.from_first(
            lambda: with_forgetting(result, self.parts.metrics, self.folder.log_file)
        )
        card = replace(
            self._card,
            processes=self._crew.sizes,
            test_accuracy=result.test_accuracy,
            test_loss=result.test_loss,
            scores=result.scores,
        )
        if outcome.samples:
            self.folder.write_samples(outcome.samples)
        self.folder.finish(result, self.model.state_dict(), card.metadata())
        return result

    def _outcome(self) -> Outcome:
        """What the task measures once, at the end."""
        task, test = self.parts.task, self.parts.test
        if test is None:
            return Outcome()
        known = {ACCURACY.key, LOSS.key, *task.scores(0.0)}
        later = [metric.name for metric in task.metrics if metric.key not in known]
        if later:
            self.progress.say(f"measuring {', '.join(later)} on the test data ...")
        self.model.eval()
        with torch.no_grad(), self._precision():
            return task.finish(self.model, test, self.recipe)

    @property
    def _is_asked(self) -> bool:
        """Whether any process was asked to stop."""
        return self.processes.any_of(self._interrupt.is_asked)[0]

    def _kept(self) -> str:
        return f"the last checkpoint in '{self.out}' is from before"

    def _saved_words(self) -> str:
        return f"everything is saved. Go on with: {how_to_resume(self.out, self._source)}"
