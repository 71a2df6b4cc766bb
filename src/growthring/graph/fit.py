"""Settles, by running resized copies on fake tensors, whether a model's own code can follow new widths.

The forward pass of a model holds sizes of its own: `view(b, t, self.num_heads, -1)`,
`split(self.split_size)`, `x / math.sqrt(self.head_dim)`. A copy at other widths is traced; it must
run the same operators on tensors of exactly the shapes that the axes predict. Attributes that hold a
changing size follow only if that is needed: each is let go in turn, and stays as it is where the copy
still does the same without it. So `max_len == d_model` is a coincidence, whatever the example's
length. Inputs of other sizes must not part the copy from the model either. What still fails is
frozen, with the reason.

An attribute that no shape needs may still be in a number. A root of it (√d, ⁴√d) is how code speaks
of a width, so it follows and the factor is compensated. A plain number (a temperature) stays: a
constant is the same at every stage, exact without compensation, and what the full model was built
with. So does a float computed in `__init__` (`self.scale = d ** -0.5`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from growthring.core.axes import Axis, Ref, refs
from growthring.errors import GrowthError, InputError
from growthring.graph.candidates import (
    Candidates,
    alike,
    axes_inside,
    groups_of,
    inside,
    read_sizes,
    worth_trying,
)
from growthring.graph.compare import Failure, Probe, compare, same_numbers
from growthring.graph.follow import Scaled, Sizes
from growthring.graph.groups import Law
from growthring.graph.places import Place, is_whole, read, steps_of_name
from growthring.graph.rehearse import Rehearsal, innermost, other_inputs, rehearse, stray
from growthring.graph.rules.walk import Walk
from growthring.graph.skeleton import copy_with, empty_copy, named_tensors
from growthring.graph.trace import ExampleInputs, trace

_MOST_TRIALS = 40
_MOST_CULPRITS = 12
_ROOTS = (0.25, 0.5)


@dataclass
class Fit:
    """Outcome of fitting: the attributes that follow, the laws of factors, or what must be frozen and why.

    Attributes:
        attributes: attribute -> the axes whose sizes it holds.
        laws: operator -> laws that explain its factor.
        numeric: attributes that follow only because a root of them is a factor.
        blocked: widths that cannot change, and `reason`.
        notes: attributes that hold a width's number and do not follow, in words.
    """

    attributes: dict[Place, Sizes | Scaled] = field(default_factory=dict)
    laws: dict[int, tuple[Law, ...]] = field(default_factory=dict)
    numeric: set[Place] = field(default_factory=set)
    blocked: list[Ref] = field(default_factory=list)
    reason: str = ""
    notes: list[str] = field(default_factory=list)


def fit(probe: Probe, constant: Iterable[Place] = ()) -> Fit:
    """Finds the fewest attributes with which a resized copy runs as predicted, or says what blocks it."""
    candidates = read_sizes(probe, constant) if probe.build is None else Candidates()
    result = Fit({**probe.attributes, **candidates.first()})
    failure = _attempt(probe, result)
    if failure is not None and candidates.options:
        result, failure = _search(probe, candidates)
    if failure is not None:
        result.blocked = _culprits(probe, result, failure) or _blame(probe, failure)
        result.reason = failure.text + _unsettable(candidates, failure)
        return result
    if candidates.options:
        runs = _Runs(probe)
        result = _reduce(probe, result, candidates, runs)
        if any(place in result.attributes for place in candidates.options):
            _vary(probe, result, candidates, runs)
        result.notes = _notes(probe, result, candidates)
    return result


def recheck(probe: Probe, fitted: Fit) -> Fit:
    """Runs a fitted model at other widths; says what blocks it there, if anything. Only laws that hold stay."""
    trial = replace(fitted, laws={}, blocked=[], reason="")
    failure = _attempt(probe, trial)
    if failure is not None:
        trial.blocked, trial.reason = _blame(probe, failure), failure.text
        return trial
    laws = {}
    for op, found in fitted.laws.items():
        moves = any(probe.changes(law.axis) for law in found)
        held = tuple(law for law in found if law in trial.laws.get(op, ()))
        laws[op] = held if moves else found
        if moves and not held:
            trial.blocked = [r for law in found for r in refs(law.axis) if probe.changes(r)]
            trial.reason = "a factor in the code changes with a width in an unknown way"
    trial.laws = laws | {op: found for op, found in trial.laws.items() if op not in laws}
    return trial


def _attempt(probe: Probe, result: Fit) -> Failure | None:
    """Traces a copy at the small widths and compares it with the prediction; fills in the laws."""
    result.laws = {}
    twin = _twin(probe, result.attributes)
    for walk, training in zip(probe.walks, probe.modes, strict=True):
        try:
            found = trace(twin, probe.inputs, training, outputs=probe.outputs)
        except GrowthError as error:
            return _crash(walk, twin, error)
        failure = compare(probe, walk, found, result.laws)
        if failure is not None:
            return failure
    return None


def _twin(probe: Probe, attributes: Mapping[Place, Sizes | Scaled]) -> nn.Module:
    if probe.build is None:
        return empty_copy(probe.model, probe.specs, attributes, probe.full, probe.small)
    twin = probe.build()
    if not isinstance(twin, nn.Module):
        raise InputError(f"build(widths) returned a {type(twin).__name__}, not an nn.Module.")
    return twin


def _crash(walk: Walk, twin: nn.Module, error: GrowthError) -> Failure:
    """The copy's own code raised: find the innermost module on the stack."""
    paths = {id(module): path for path, module in twin.named_modules()}
    cause: BaseException = error.__cause__ or error
    module, line = innermost(paths, cause)
    starts = [i for i, op in enumerate(walk.trace.ops) if inside(op.module, module)]
    message = (str(cause).strip().splitlines() or [""])[0]
    text = f"the code of '{module or '(model)'}' does not follow another width ({message})"
    return Failure((0, starts[0] if starts else 0, line), module, text)


def _search(probe: Probe, candidates: Candidates) -> tuple[Fit, Failure | None]:
    """Adds attributes of the failing module as long as the trace gets further; takes back what is in the way."""
    result = Fit(dict(probe.attributes))
    failure = _attempt(probe, result)
    trials = 0
    while failure is not None and trials < _MOST_TRIALS:
        known = result.attributes
        more = worth_trying(probe, failure.module, candidates, known)
        added = groups_of(probe, [p for p in candidates.options if p in known])
        fewer = ({p: axes for p, axes in known.items() if p not in group} for group in added)
        for attributes in itertools.chain(({**known, **extra} for extra in more), fewer):
            trials += 1
            trial = Fit(attributes)
            outcome = _attempt(probe, trial)
            if outcome is None or outcome.progress > failure.progress:
                failure, result = outcome, trial
                break
        else:
            break
    return result, failure


class _Runs:
    """Rehearsals of the model and of its copy at the small widths."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._full: dict[str, Rehearsal] = {}
        self._twins: dict[tuple[frozenset[Place], bool], Rehearsal] = {}

    def twin(self, attributes: Mapping[Place, Sizes | Scaled], training: bool) -> Rehearsal:
        """The copy on the example."""
        key = (frozenset(attributes), training)
        if key not in self._twins:
            self._twins[key] = self.other_twin(attributes, self._probe.inputs, training)
        return self._twins[key]

    def other_twin(
        self,
        attributes: Mapping[Place, Sizes | Scaled],
        inputs: ExampleInputs,
        training: bool = False,
    ) -> Rehearsal:
        """The copy on other inputs."""
        return rehearse(_twin(self._probe, attributes), inputs, training, self._probe.outputs)

    def full(self, text: str, inputs: ExampleInputs) -> Rehearsal:
        """The model itself."""
        if text not in self._full:
            model = self._probe.model
            copied = copy_with(model, {n: t.detach() for n, t in named_tensors(model).items()})
            self._full[text] = rehearse(copied, inputs, outputs=self._probe.outputs)
        return self._full[text]


def _reduce(probe: Probe, result: Fit, candidates: Candidates, runs: _Runs) -> Fit:
    """Lets go of every attribute without which the copy does the same."""
    whole = [runs.twin(result.attributes, training) for training in probe.modes]
    for group in groups_of(probe, [p for p in candidates.options if p in result.attributes]):
        fewer = {p: axes for p, axes in result.attributes.items() if p not in group}
        trial = replace(result, attributes=fewer, laws={}, numeric=set(result.numeric))
        if any(run.error for run in whole):  # it cannot be rehearsed: trace it
            if _attempt(probe, trial) is None and not _is_root(result, trial):
                result = trial
            continue
        shorter: list[Rehearsal] = []
        for training, run in zip(probe.modes, whole, strict=True):
            shorter.append(runs.twin(fewer, training))
            if not run.same_shapes(shorter[-1]):
                break
        else:
            if all(a.same_numbers(b) for a, b in zip(whole, shorter, strict=True)):
                trial.laws = result.laws
                result = trial
            elif _attempt(probe, trial) is None:
                if _is_root(result, trial):
                    result.numeric.update(group)
                else:
                    result, whole = trial, shorter
    return result


def _is_root(whole: Fit, shorter: Fit) -> bool:
    """Whether the factors that are gone without an attribute were all roots of a width."""
    gone = [laws for op, laws in whole.laws.items() if op not in shorter.laws]
    return bool(gone) and all(any(abs(law.power) in _ROOTS for law in laws) for laws in gone)


def _vary(probe: Probe, result: Fit, candidates: Candidates, runs: _Runs) -> None:
    """On inputs of other sizes the copy must do what the model does; an attribute may be needed only there."""
    base = runs.twin(result.attributes, False)
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
            away = stray(full, base, other, runs.other_twin(result.attributes, inputs))
            if away is not None:
                more = _needed_there(probe, result, candidates, runs, (full, other), inputs)
                if more is None:
                    module, what = away
                    result.reason = (
                        f"with {text}, the code of '{module or '(model)'}' does not follow another width "
                        f"({what})"
                    )
                    failure = Failure((1, 0, 0), module, result.reason)
                    result.blocked = _blame(probe, failure)
                    return
                result.attributes = {**result.attributes, **more}
                base = runs.twin(result.attributes, False)
            break


def _needed_there(
    probe: Probe,
    result: Fit,
    candidates: Candidates,
    runs: _Runs,
    full: tuple[Rehearsal, Rehearsal],
    inputs: ExampleInputs,
) -> dict[Place, Sizes] | None:
    """Attributes that were let go and with which the copy does right on other inputs, and still on the example."""
    gone = [p for p in candidates.options if p not in result.attributes]
    for group in groups_of(probe, gone):
        more = {p: candidates.options[p][0] for p in group}
        trial = Fit({**result.attributes, **more})
        base = runs.twin(trial.attributes, False)
        there = runs.other_twin(trial.attributes, inputs)
        if stray(full[0], base, full[1], there) is None and _attempt(probe, trial) is None:
            result.laws = trial.laws
            return more
    return None


def _notes(probe: Probe, result: Fit, candidates: Candidates) -> list[str]:
    """Says which attributes hold a width's number and yet stay as they are."""
    gone: dict[tuple[str, str], list[Place]] = {}
    for place in candidates.options:
        if place not in result.attributes:
            key = (steps_of_name(place[1])[-1][1], str(read(probe.model, place)))
            gone.setdefault(key, []).append(place)
    notes = []
    for (_, held), places in gone.items():
        more = f" (and {len(places) - 1} alike)" if len(places) > 1 else ""
        where = ".".join(places[0]).lstrip(".")
        notes.append(
            f"'{where}'{more} holds {held}, the size of a width; no shape needs it, so it stays that at every stage"
        )
    return notes


def _unsettable(candidates: Candidates, failure: Failure) -> str:
    near = [(p, why) for p, why in candidates.fixed.items() if inside(failure.module, p[0])]
    if not near:
        return ""
    (path, name), why = near[0]
    where = f"{path}.{name}".lstrip(".")
    return f"; '{where}' holds a width and cannot follow: {why}"


def _culprits(probe: Probe, result: Fit, failure: Failure) -> list[Ref]:
    """The widths that change a number of the code, found by changing one at a time; none if that takes too long."""
    moving = [g for g in probe.full if probe.changes(Ref(g))]
    if failure.number is None or probe.build is not None or len(moving) > _MOST_CULPRITS:
        return []
    index = failure.number
    walk, training = next(
        (w, t)
        for w, t in zip(probe.walks, probe.modes, strict=True)
        if w.first_op <= index < w.first_op + len(w.trace.ops)
    )
    op = walk.trace.ops[index - walk.first_op]
    found = []
    for group in moving:
        widths = copy.copy(probe.full)
        assert isinstance(widths, dict)
        widths[group] = probe.small[group]
        twin = _twin(replace(probe, small=widths), result.attributes)
        try:
            seen = trace(twin, probe.inputs, training, outputs=probe.outputs)
            there = seen.ops[index - walk.first_op]
        except (GrowthError, IndexError):  # it does not go by itself
            continue
        if there.name != op.name or not same_numbers(op, walk.trace, there, seen):
            found.append(Ref(group))
    return found


def _blame(probe: Probe, failure: Failure) -> list[Ref]:
    """The widths to freeze: those of the failing operator, or those that only its module knows.

    Layers come in stacks: the same widths of every module at a like place are blamed together.
    """
    axes: Iterable[Axis] = failure.axes or axes_inside(probe, failure.module)
    candidates = {ref.group: ref for axis in axes for ref in refs(axis) if probe.changes(ref)}
    outside = {
        ref.group
        for walk in probe.walks
        for op in walk.trace.ops
        if not inside(op.module, failure.module)
        for value in op.outputs
        for axis in probe.axes(walk, value)
        for ref in refs(axis)
    }
    local = [ref for key, ref in candidates.items() if key not in outside]
    if not local:
        if candidates:
            return list(candidates.values())
        return [Ref(key) for key in probe.full if probe.full[key] != probe.small[key]]
    own = [r.group for axis in axes_inside(probe, failure.module) for r in refs(axis)]
    blamed = list(local)
    pattern = alike(failure.module)
    for path, _ in probe.model.named_modules():
        if path != failure.module and alike(path) == pattern:
            theirs = [r for axis in axes_inside(probe, path) for r in refs(axis)]
            if len(theirs) == len(own):
                blamed += [theirs[own.index(r.group)] for r in local if r.group in own]
    return blamed


def settle(
    laws: Mapping[int, tuple[Law, ...]], together: Callable[[Ref], int]
) -> dict[int, Law] | list[Ref]:
    """One law for each factor, or the widths to freeze because nothing tells which of them a factor follows.

    Args:
        laws: operator -> the laws that held at all widths tried.
        together: width -> number of the set of widths that always move in one proportion, -1 if it does not grow.
    """
    chosen: dict[int, Law] = {}
    for op, found in laws.items():
        sets = {(frozenset(together(r) for r in refs(law.axis)) - {-1}, law.power) for law in found}
        if len(sets) > 1:
            return [r for law in found for r in refs(law.axis)]
        chosen[op] = found[0]
    return chosen
