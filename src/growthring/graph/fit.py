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

import itertools
from collections.abc import Iterable
from dataclasses import replace

from growthring.core.axes import refs
from growthring.graph.attempt import Fit, attempt
from growthring.graph.blame import blame, culprits
from growthring.graph.candidates import Candidates, groups_of, inside, read_sizes, worth_trying
from growthring.graph.compare import Failure
from growthring.graph.needed import Rehearsals, drop_unneeded, vary_inputs
from growthring.graph.places import Place, read, steps_of_name
from growthring.graph.probe import Probe

_MOST_TRIALS = 40


def fit(probe: Probe, constant: Iterable[Place] = ()) -> Fit:
    """Finds the fewest attributes with which a resized copy runs as predicted, or says what blocks it."""
    candidates = read_sizes(probe, constant) if probe.build is None else Candidates()
    result = Fit({**probe.attributes, **candidates.first()})
    failure = attempt(probe, result)
    if failure is not None and candidates.options:
        result, failure = search_attributes(probe, candidates)
    if failure is not None:
        result.blocked = culprits(probe, result, failure) or blame(probe, failure)
        result.reason = failure.text + _unsettable(candidates, failure)
        return result
    if candidates.options:
        runs = Rehearsals(probe)
        result = drop_unneeded(probe, result, candidates, runs)
        if any(place in result.attributes for place in candidates.options):
            vary_inputs(probe, result, candidates, runs)
        result.notes = _notes(probe, result, candidates)
    return result


def recheck(probe: Probe, fitted: Fit) -> Fit:
    """Runs a fitted model at other widths; says what blocks it there, if anything. Only laws that hold stay."""
    trial = replace(fitted, laws={}, blocked=[], reason="")
    failure = attempt(probe, trial)
    if failure is not None:
        trial.blocked, trial.reason = blame(probe, failure), failure.text
        return trial
    laws = {}
    for op, fitting in fitted.laws.items():
        moves = any(probe.changes(law.axis) for law in fitting)
        held = tuple(law for law in fitting if law in trial.laws.get(op, ()))
        laws[op] = held if moves else fitting
        if moves and not held:
            trial.blocked = [r for law in fitting for r in refs(law.axis) if probe.changes(r)]
            trial.reason = "a factor in the code changes with a width in an unknown way"
    trial.laws = laws | {op: fitting for op, fitting in trial.laws.items() if op not in laws}
    return trial


def search_attributes(probe: Probe, candidates: Candidates) -> tuple[Fit, Failure | None]:
    """Adds attributes of the failing module as long as the trace gets further; takes back what is in the way."""
    result = Fit(dict(probe.attributes))
    failure = attempt(probe, result)
    trials = 0
    while failure is not None and trials < _MOST_TRIALS:
        known = result.attributes
        more = worth_trying(probe, failure.module, candidates, known)
        added = groups_of(probe, [p for p in candidates.options if p in known])
        fewer = ({p: axes for p, axes in known.items() if p not in group} for group in added)
        for attributes in itertools.chain(({**known, **extra} for extra in more), fewer):
            trials += 1
            trial = Fit(attributes)
            outcome = attempt(probe, trial)
            if outcome is None or outcome.progress > failure.progress:
                failure, result = outcome, trial
                break
        else:
            break
    return result, failure


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
