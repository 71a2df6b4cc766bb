"""Of the attributes with which a copy runs, those that are needed: on the example, and on inputs of other sizes.

Each attribute is let go in turn, and stays as it is where the copy still does the same without it. Rehearsals are
enough to see that, and much cheaper than traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from growthring.graph.attempt import Fit, attempt, copy_at
from growthring.graph.blame import blame
from growthring.graph.candidates import Candidates, groups_of
from growthring.graph.compare import Failure
from growthring.graph.follow import Scaled, Sizes
from growthring.graph.places import Place, is_whole, read
from growthring.graph.probe import Probe
from growthring.graph.rehearse import Rehearsal, other_inputs, rehearse, stray
from growthring.graph.resize import copy_with, named_tensors
from growthring.graph.trace import ExampleInputs

_ROOTS = (0.25, 0.5)


class Rehearsals:
    """Rehearsals of the model and of its copy at the small widths."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._full: dict[str, Rehearsal] = {}
        self._copies: dict[tuple[frozenset[Place], bool], Rehearsal] = {}

    def copy(self, attributes: Mapping[Place, Sizes | Scaled], training: bool) -> Rehearsal:
        """The copy on the example."""
        key = (frozenset(attributes), training)
        if key not in self._copies:
            self._copies[key] = self.copy_on(attributes, self._probe.inputs, training)
        return self._copies[key]

    def copy_on(
        self,
        attributes: Mapping[Place, Sizes | Scaled],
        inputs: ExampleInputs,
        training: bool = False,
    ) -> Rehearsal:
        """The copy on other inputs."""
        return rehearse(copy_at(self._probe, attributes), inputs, training, self._probe.outputs)

    def full(self, text: str, inputs: ExampleInputs) -> Rehearsal:
        """The model itself."""
        if text not in self._full:
            model = self._probe.model
            copied = copy_with(model, {n: t.detach() for n, t in named_tensors(model).items()})
            self._full[text] = rehearse(copied, inputs, outputs=self._probe.outputs)
        return self._full[text]


def drop_unneeded(probe: Probe, result: Fit, candidates: Candidates, runs: Rehearsals) -> Fit:
    """Lets go of every attribute without which the copy does the same."""
    whole = [runs.copy(result.attributes, training) for training in probe.modes]
    for group in groups_of(probe, [p for p in candidates.options if p in result.attributes]):
        fewer = {p: axes for p, axes in result.attributes.items() if p not in group}
        trial = replace(result, attributes=fewer, laws={}, numeric=set(result.numeric))
        if any(run.error for run in whole):  # it cannot be rehearsed: trace it
            if attempt(probe, trial) is None and not _is_root(result, trial):
                result = trial
            continue
        shorter: list[Rehearsal] = []
        for training, run in zip(probe.modes, whole, strict=True):
            shorter.append(runs.copy(fewer, training))
            if not run.same_shapes(shorter[-1]):
                break
        else:
            if all(a.same_numbers(b) for a, b in zip(whole, shorter, strict=True)):
                trial.laws = result.laws
                result = trial
            elif attempt(probe, trial) is None:
                if _is_root(result, trial):
                    result.numeric.update(group)
                else:
                    result, whole = trial, shorter
    return result


def _is_root(whole: Fit, shorter: Fit) -> bool:
    """Whether the factors that are gone without an attribute were all roots of a width."""
    gone = [laws for op, laws in whole.laws.items() if op not in shorter.laws]
    return bool(gone) and all(any(abs(law.power) in _ROOTS for law in laws) for laws in gone)


def vary_inputs(probe: Probe, result: Fit, candidates: Candidates, runs: Rehearsals) -> None:
    """On inputs of other sizes the copy must do what the model does; an attribute may be needed only there."""
    base = runs.copy(result.attributes, False)
    full = runs.full("", probe.inputs)
    if base.error or full.error:
        return
    held = [read(probe.model, place) for place in candidates.options]
    beyond = max(n for h in held for n in ([h] if is_whole(h) else h))
    for alternatives in other_inputs(probe.inputs, beyond):
        for text, inputs in alternatives:
            other = runs.full(text, inputs)
            if other.error:
                continue
            away = stray(full, base, other, runs.copy_on(result.attributes, inputs))
            if away is not None:
                more = _needed_there(probe, result, candidates, runs, (full, other), inputs)
                if more is None:
                    module, what = away
                    result.reason = (
                        f"with {text}, the code of '{module or '(model)'}' does not follow another width "
                        f"({what})"
                    )
                    failure = Failure((1, 0, 0), module, result.reason)
                    result.blocked = blame(probe, failure)
                    return
                result.attributes = {**result.attributes, **more}
                base = runs.copy(result.attributes, False)
            break


def _needed_there(
    probe: Probe,
    result: Fit,
    candidates: Candidates,
    runs: Rehearsals,
    full: tuple[Rehearsal, Rehearsal],
    inputs: ExampleInputs,
) -> dict[Place, Sizes] | None:
    """Attributes that were let go and with which the copy does right on other inputs, and still on the example."""
    gone = [p for p in candidates.options if p not in result.attributes]
    for group in groups_of(probe, gone):
        more = {p: candidates.options[p][0] for p in group}
        trial = Fit({**result.attributes, **more})
        base = runs.copy(trial.attributes, False)
        there = runs.copy_on(trial.attributes, inputs)
        if stray(full[0], base, full[1], there) is None and attempt(probe, trial) is None:
            result.laws = trial.laws
            return more
    return None
