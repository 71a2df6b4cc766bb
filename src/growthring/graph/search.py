"""Search: freezes widths until the model's own code follows all that are left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from growthring.core.axes import Axis, Ref, refs
from growthring.core.variance import ScaleConflict, preserve
from growthring.errors import InputError
from growthring.graph.analysis import Analysis, Tie
from growthring.graph.attempt import Fit
from growthring.graph.classes import check_classes
from growthring.graph.factors import Held, Split
from growthring.graph.finish import finish, nothing_grows
from growthring.graph.fit import fit, recheck
from growthring.graph.follow import Attributes, Scaled
from growthring.graph.groups import Law, WidthGroups
from growthring.graph.laws import log_ratios, settle
from growthring.graph.numbers import is_default_attention
from growthring.graph.places import Place
from growthring.graph.probe import Probe
from growthring.graph.rebuild import Rebuild
from growthring.graph.sizes import Stages, steps_of, widths_over
from growthring.graph.steps import Steps
from growthring.graph.unify import Reason

TIES: tuple[Tie, ...] = ("apart", "equal", "proportional")
# One entry of a config is for all layers.
CONFIG_TIES: tuple[Tie, ...] = ("alike", "equal", "proportional")
_MOST_SETS = 8  # of widths that move together, among which a culprit is looked for
_LEAST_STEPS = 4


@dataclass(frozen=True)
class _Trial:
    """The model's code at other widths: which grow, how they are tied, what was run, what came of it."""

    growing: Sequence[int]
    tie: Tie
    probe: Probe
    fit: Fit


class Search:
    """Freezes widths until the model's own code follows all that are left."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        # Attributes that do not follow, because a factor could not be made up for.
        self.constant: set[Place] = set()
        self.rebuild = Rebuild(analysis.model)
        self.unloadable = False
        self.more: Attributes = {}  # what a model built from the config has at other widths

    def run(self, stages: Stages | None = None) -> WidthGroups:
        """The groups, when everything that grows is followed.

        Args:
            stages: of a plan; the code must follow the widths of the first, besides those that are tried anyway.
        """
        choice = self.analysis.choice
        while growing := self._choose():
            groups = self._attempt(growing, stages)
            if groups is None or choice.gives_up(groups, stages or Stages()):
                continue
            if self._is_described() or not choice.gives_up_heads():
                return groups
        raise nothing_grows(self.analysis)

    def _choose(self) -> list[int]:
        """The groups that grow next; raises where classes were to be among them, and cannot."""
        growing = self.analysis.choice.choose()
        check_classes(self.analysis.traced, self.analysis.choice.frozen)
        return growing

    def _attempt(self, growing: Sequence[int], stages: Stages | None) -> WidthGroups | None:
        """The groups if all of these widths can grow; None where some were frozen, for the next attempt."""
        trial = self._tell_laws_apart(self._fitted(growing))
        if stages is not None and not trial.fit.blocked:
            trial = self._at_first(trial, stages)
        if trial.fit.blocked:
            self._freeze_blocked(trial.fit)
            return None
        laws = self._settled(trial)
        if laws is None:
            return None
        notes = [*trial.fit.notes, *self._config_notes()]
        return finish(self.analysis, replace(trial.fit, notes=notes), laws, trial.tie)

    def _freeze_blocked(self, fitted: Fit) -> None:
        if self.analysis.run.build is not None:
            raise InputError(
                f"build(widths) does not give the model at other widths: {fitted.reason}."
            )
        self.analysis.unifier.freeze(fitted.blocked, Reason("code", fitted.reason))

    def _is_described(self) -> bool:
        """Whether the config of the last attempt, if the model is built from one, says the widths of all stages."""
        return bool(self.more) or not self.rebuild.works or self.analysis.run.build is not None

    def _config_notes(self) -> list[str]:
        if self._is_described():
            return []
        return [
            f"the config of {type(self.analysis.model).__name__} cannot say the widths of the stages before the "
            "last: only the full-size model can be loaded with from_pretrained"
        ]

    def _at_first(self, trial: _Trial, stages: Stages) -> _Trial:
        """The trial, checked at the widths of the first stage as well."""
        groups = finish(self.analysis, trial.fit, {}, trial.tie)
        widths = widths_over(groups, stages.fractions, stages.round_to)[0]
        if stages.classes:
            widths |= dict.fromkeys(self.analysis.traced.classes, stages.classes[0])
        return replace(trial, fit=recheck(self.analysis.at(trial.probe, widths), trial.fit))

    def _probe(self, growing: Sequence[int], tie: Tie, variation: int = 0) -> Probe:
        return self.analysis.probe(growing, tie, variation, self.more)

    def _fitted(self, growing: Sequence[int]) -> _Trial:
        """First with equal sizes set apart; code that relies on them being equal fails, and gets them equal."""
        tried: list[_Trial] = []
        for tie in self._follow_config(growing):
            probe = self._probe(growing, tie)
            is_tried = any(trial.probe.small == probe.small for trial in tried)
            if tried and (self._is_coarse(growing, tie) or is_tried):
                continue
            trial = _Trial(growing, tie, probe, fit(probe, self.constant))
            if not trial.fit.blocked:
                return trial
            tried.append(trial)
        last = tried[-1]
        blocked = self._culprits(last) or last.fit.blocked
        return replace(last, fit=replace(last.fit, blocked=blocked))

    def _culprits(self, trial: _Trial) -> list[Ref]:
        """A set of widths that move together without which all others can change; none if there is no such set."""
        probe = trial.probe
        sets: list[Held] = []
        for steps in self._sets(trial.tie, trial.growing):
            moving = tuple(g for g in steps.groups if probe.small[g] != probe.full[g])
            if moving and isinstance(steps, Split):
                sets += steps.holding(probe.full, probe.small)
            elif moving:
                sets.append((moving, {group: probe.full[group] for group in moving}))
        if not 1 < len(sets) <= _MOST_SETS:
            return []
        for members, widths in sets:
            at = self.analysis.at(probe, {**probe.small, **widths})
            if not fit(at, self.constant).blocked:
                return [Ref(group) for group in members]
        return []

    def _follow_config(self, growing: Sequence[int]) -> Sequence[Tie]:
        """The ties to try; where the model is built from a config, those with which that can follow."""
        self.more = {}
        if not self.rebuild.works or self.unloadable or self.analysis.run.build is not None:
            return TIES
        for i, tie in enumerate(CONFIG_TIES):
            if self._is_coarse(growing, tie):
                continue
            movable: set[int] = set()
            for unit in self.rebuild.units():
                self.analysis.unit = unit
                probes = [self._probe(growing, tie, variation) for variation in (0, 1, -1)]
                moving = {g for g in growing if all(p.small[g] != p.full[g] for p in probes)}
                movable = movable or moving
                if not moving or moving < movable:
                    break
                self.more = self.rebuild.attributes(probes) or {}
                if self.more:
                    return CONFIG_TIES[i:]
                if not self.rebuild.refused:
                    break
        self.analysis.unit = 1
        return TIES

    def _is_coarse(self, growing: Sequence[int], tie: Tie) -> bool:
        """Whether all widths in one proportion would leave hardly any steps to grow in."""
        pairs = self.analysis.pairs(growing, tie)
        factors = {g for pair in pairs for g in pair}
        parts = [*((g,) for g in growing if g not in factors), *pairs]
        steps = math.gcd(*(math.prod(self.analysis.unifier.size(Ref(g)) for g in p) for p in parts))
        return tie == "proportional" and steps < _LEAST_STEPS

    def _tell_laws_apart(self, trial: _Trial) -> _Trial:
        """Factors in the code: which widths they follow shows where those shrink by different amounts."""
        result, growing, tie = trial.fit, trial.growing, trial.tie
        operators = [self.analysis.traced.operator(op) for op in result.laws]
        is_explicit = not all(is_default_attention(op) for op in operators)
        for variation in (1, 2, 3):
            if result.blocked or not is_explicit:
                break
            if variation > 1 and not isinstance(
                settle(result.laws, self._numbers(tie, growing)), list
            ):
                break
            result = recheck(self._probe(growing, tie, variation), result)
        return replace(trial, fit=result)

    def _sets(self, tie: Tie, growing: Sequence[int]) -> list[Steps | Split]:
        analysis = self.analysis
        full, pairs = analysis.traced.full_widths(growing), analysis.pairs(growing, tie)
        return steps_of(analysis.spans(growing, tie), full, growing, 1, pairs=pairs)

    def _numbers(self, tie: Tie, growing: Sequence[int]) -> Callable[[Axis], frozenset[int]]:
        """Axis -> the sets of widths that it goes with; a product goes with what is as large as it."""
        sets = self._sets(tie, growing)
        parts = [part for steps in sets for part in steps.parts]
        number = {g: i for i, part in enumerate(parts) for g in part.groups}

        def numbers(axis: Axis) -> frozenset[int]:
            found = frozenset(number[r.group] for r in refs(axis) if r.group in number)
            for steps in sets:
                if isinstance(steps, Split) and steps.rest is not None:
                    count, size, rest = (number[part.groups[0]] for part in steps.parts)
                    if {count, size} <= found:
                        found = found - {count, size} | {rest}
            return found

        return numbers

    def _settled(self, trial: _Trial) -> dict[int, Law] | None:
        """One law for each factor, all of which weights can make up for; freezes something where there is none."""
        laws = settle(trial.fit.laws, self._numbers(trial.tie, trial.growing))
        if isinstance(laws, list):
            text = "nothing tells which of several widths a factor in the code follows"
            blamed, reason = laws, Reason("scale", text)
        else:
            ratios = log_ratios(laws, trial.probe.small, trial.probe.full)
            conflict = self._conflict(ratios)
            if conflict is None:
                return laws
            alone = [op for op, ratio in ratios.items() if self._conflict({op: ratio})]
            blamed = [
                r for op in alone or laws if laws[op].mean is None for r in refs(laws[op].axis)
            ]
            reason = Reason("scale", conflict)
        if any(isinstance(rule, Scaled) for rule in self.more.values()):
            self.unloadable = True  # better no config to load a stage from than no growth
        elif trial.fit.numeric - self.constant:
            # No shape needs these attributes: as constants they need no making up for.
            self.constant |= trial.fit.numeric
        else:
            self.analysis.unifier.freeze(blamed, reason)
        return None

    def _conflict(self, ratios: Mapping[int, float]) -> str | None:
        scales = self.analysis.scales
        try:
            preserve(scales.records, scales.count, {}, ratios)
        except ScaleConflict as conflict:
            return str(conflict)
        return None
