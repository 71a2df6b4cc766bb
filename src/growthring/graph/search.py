"""Search: freezes widths until the model's own code follows all that are left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from growthring.core.axes import Ref, refs
from growthring.core.variance import ScaleConflict, preserve
from growthring.errors import InputError
from growthring.graph.analysis import Analysis, Build, Sizes, Tie
from growthring.graph.attempt import Fit
from growthring.graph.fit import fit, recheck
from growthring.graph.follow import Attributes, Scaled
from growthring.graph.groups import Law, WidthGroups
from growthring.graph.laws import log_ratios, settle
from growthring.graph.numbers import is_default_attention
from growthring.graph.places import Place
from growthring.graph.probe import Probe
from growthring.graph.rebuild import Rebuild
from growthring.graph.sizes import steps_of
from growthring.graph.trace import ExampleInputs
from growthring.graph.unify import Reason

TIES: tuple[Tie, ...] = ("apart", "equal", "proportional")
_MOST_SETS = 8  # of widths that move together, among which a culprit is looked for
# One entry of a config is for all layers.
CONFIG_TIES: tuple[Tie, ...] = ("alike", "equal", "proportional")
_LEAST_STEPS = 4


class Search:
    """Freezes widths until the model's own code follows all that are left."""

    def __init__(
        self,
        analysis: Analysis,
        inputs: ExampleInputs,
        modes: Sequence[bool],
        outputs: Sequence[str] | None,
        build: Build | None,
    ) -> None:
        self.analysis, self.inputs, self.modes = analysis, inputs, modes
        self.outputs, self.build = outputs, build
        # Attributes that do not follow, because a factor could not be made up for.
        self.constant: set[Place] = set()
        self.rebuild = Rebuild(analysis.model)
        self.unloadable = False
        self.more: Attributes = {}  # what a model built from the config has at other widths

    def run(self, trial_widths: Callable[[WidthGroups], Mapping[int, int]] | None) -> WidthGroups:
        """The groups, when everything that grows is followed."""
        analysis = self.analysis
        result, tie = Fit(dict(analysis.attributes())), TIES[0]
        laws: dict[int, Law] | None = None
        while growing := analysis.choose():
            result, tie, probe = self._fit(growing)
            result = self._tell_laws_apart(result, tie, growing)
            if not result.blocked and trial_widths is not None:
                small = Sizes(analysis.unifier)
                small.update(trial_widths(analysis.result(result, {}, tie)))
                result = recheck(analysis.at(probe, small, self.build), result)
            if result.blocked and self.build is not None:
                raise InputError(
                    f"build(widths) does not give the model at other widths: {result.reason}."
                )
            if result.blocked:
                analysis.unifier.freeze(result.blocked, Reason("code", result.reason))
                continue
            laws = self._settled(result, tie, growing, probe)
            if laws is not None:
                break
        if self.rebuild.works and not self.more and self.build is None:
            result.notes.append(
                f"the config of {type(analysis.model).__name__} cannot say the widths of the stages before the "
                "last: only the full-size model can be loaded with from_pretrained"
            )
        return analysis.result(result, laws or {}, tie)

    def _probe(self, growing: Sequence[int], tie: Tie, variation: int = 0) -> Probe:
        return self.analysis.probe(
            self.inputs, self.modes, self.outputs, growing, tie, self.build, variation, self.more
        )

    def _fit(self, growing: Sequence[int]) -> tuple[Fit, Tie, Probe]:
        """First with equal sizes set apart; code that relies on them being equal fails, and gets them equal."""
        tried: list[Mapping[int, int]] = []
        for tie in self._follow_config(growing):
            probe = self._probe(growing, tie)
            if tried and (self._is_coarse(growing, tie) or probe.small in tried):
                continue
            tried.append(probe.small)
            result, last, used = fit(probe, self.constant), tie, probe
            if not result.blocked:
                break
        if result.blocked:
            result.blocked = self._culprits(last, growing, used) or result.blocked
        return result, last, used

    def _culprits(self, tie: Tie, growing: Sequence[int], probe: Probe) -> list[Ref]:
        """A set of widths that move together without which all others can change; none if there is no such set."""
        number = self._sets(tie, growing)
        sets: dict[int, list[int]] = {}
        for group in growing:
            if probe.small[group] != probe.full[group]:
                sets.setdefault(number(Ref(group)), []).append(group)
        if not 1 < len(sets) <= _MOST_SETS:
            return []
        for members in sets.values():
            small = Sizes(self.analysis.unifier)
            small.update(probe.small)
            small.update({group: probe.full[group] for group in members})
            if not fit(self.analysis.at(probe, small, self.build), self.constant).blocked:
                return [Ref(group) for group in members]
        return []

    def _follow_config(self, growing: Sequence[int]) -> Sequence[Tie]:
        """The ties to try; where the model is built from a config, those with which that can follow."""
        self.more = {}
        if not self.rebuild.works or self.unloadable or self.build is not None:
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
                found = self.rebuild.attributes(probes)
                if found:
                    self.more = found
                    return CONFIG_TIES[i:]
                if not self.rebuild.refused:
                    break
        self.analysis.unit = 1
        return TIES

    def _is_coarse(self, growing: Sequence[int], tie: Tie) -> bool:
        """Whether all widths in one proportion would leave hardly any steps to grow in."""
        steps = math.gcd(*(self.analysis.unifier.size(Ref(g)) for g in growing))
        return tie == "proportional" and steps < _LEAST_STEPS

    def _tell_laws_apart(self, result: Fit, tie: Tie, growing: Sequence[int]) -> Fit:
        """Factors in the code: which widths they follow shows where those shrink by different amounts."""
        explicit = [
            op for op in result.laws if not is_default_attention(self.analysis.operator(op))
        ]
        for variation in (1, 2, 3):
            if result.blocked or not explicit:
                break
            if variation > 1 and not isinstance(
                settle(result.laws, self._sets(tie, growing)), list
            ):
                break
            result = recheck(self._probe(growing, tie, variation), result)
        return result

    def _sets(self, tie: Tie, growing: Sequence[int]) -> Callable[[Ref], int]:
        full = Sizes(self.analysis.unifier)
        full.update({g: self.analysis.unifier.size(Ref(g)) for g in growing})
        sets = steps_of(self.analysis.spans(growing, tie), full, growing, 1)
        number = {g: i for i, steps in enumerate(sets) for g in steps.groups}
        return lambda ref: number.get(ref.group, -1)

    def _settled(
        self, result: Fit, tie: Tie, growing: Sequence[int], probe: Probe
    ) -> dict[int, Law] | None:
        """One law for each factor, all of which weights can make up for; freezes something where there is none."""
        laws = settle(result.laws, self._sets(tie, growing))
        if isinstance(laws, list):
            text = "nothing tells which of several widths a factor in the code follows"
            blamed, reason = laws, Reason("scale", text)
        else:
            ratios = log_ratios(laws, probe.small, probe.full)
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
        elif result.numeric - self.constant:
            # No shape needs these attributes: as constants they need no making up for.
            self.constant |= result.numeric
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
