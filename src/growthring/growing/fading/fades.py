"""Fades: all the fades that are under way on a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from growthring.core.axes import Axis, Fixed, Product, layout
from growthring.errors import FadeError
from growthring.graph.reductions import Statistics
from growthring.growing.fading.fade import Fade
from growthring.growing.fading.intercept import FadedForward

FadePlace = tuple[str, str, int]  # module, site in its code, position among the axes reduced there


def _units(axis: Axis) -> tuple[int, Axis, int]:
    """An axis as (repetitions of the whole, units, repetitions of each)."""
    outer = inner = 1
    if isinstance(axis, Product):
        first, *_, last = parts = axis.parts
        if isinstance(first, Fixed):
            outer, parts = first.size, parts[1:]
        if isinstance(last, Fixed) and len(parts) > 1:
            inner, parts = last.size, parts[:-1]
        axis = parts[0] if len(parts) == 1 else Product(parts)
    return outer, axis, inner


def _fade(s: Statistics, start: torch.Tensor) -> Fade:
    outer, _, inner = _units(s.axis)
    return Fade(start, 0.0, outer, inner, s.is_mean, s.is_spread)


class Fades:
    """All the fades that are under way on a model, by place.

    Args:
        model: the model; fades that another grower began on it are taken over.
        statistics: the reductions in its code.
    """

    def __init__(self, model: nn.Module, statistics: Sequence[Statistics]) -> None:
        self.model = model
        self._fades: dict[FadePlace, Fade] = {}
        self._stand_ins: dict[str, FadedForward] = {}
        self._places = {s.place: s for s in statistics}
        for path, module in model.named_modules():
            stand_in = vars(module).get("forward")
            if isinstance(stand_in, FadedForward):
                self._stand_ins[path] = stand_in
                for site, fades in stand_in.table.fades.items():
                    self._fades |= {(path, site, i): fade for i, fade in fades.items()}

    def __len__(self) -> int:
        return len(self._fades)

    def extend(
        self, statistics: Sequence[Statistics], before: Mapping[int, int], after: Mapping[int, int]
    ) -> None:
        """Lets the new entries of every reduction that grew fade in.

        Entries that are still fading from an earlier growth go on from where they are.
        """
        self._check()
        kept = dict(self._fades)
        grown = [(s, layout(_units(s.axis)[1], before, after)) for s in statistics]
        for place, fade in kept.items():  # progress is counted anew
            self._begin(place, fade.renewed())
        for s, lay in grown:
            if lay.grows:
                previous = kept.get(s.place)
                start = torch.zeros(len(lay.source), dtype=torch.float64)
                start[lay.old] = 1.0 if previous is None else previous.weights
                self._begin(s.place, _fade(s, start))

    def advance(self, progress: float) -> None:
        """Moves every fade on."""
        self._check()
        for fade in self._fades.values():
            fade.advance(progress)

    def finish(self) -> None:
        """Gives every module its own forward back."""
        for stand_in in self._stand_ins.values():
            stand_in.end()
        self._stand_ins.clear()
        self._fades.clear()

    def progress(self) -> dict[str, float]:
        """How far each module's statistics are."""
        return {path: fade.progress for (path, _, _), fade in self._fades.items()}

    def state_dict(self) -> list[dict[str, Any]]:
        """Where each fade began and how far it is."""
        return [
            {
                "module": path,
                "site": site,
                "position": position,
                "start": fade.start.clone(),
                "progress": fade.progress,
            }
            for (path, site, position), fade in self._fades.items()
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Begins the saved fades anew."""
        fades: dict[FadePlace, Fade] = {}
        for s in state:
            place: Any = (s.get("module"), s.get("site"), s.get("position"))
            if place not in self._places:
                raise FadeError(
                    f"the saved state has a fade at '{place[1]}' in '{place[0]}', and the model's code takes no "
                    "statistics there: it was saved by other code, or by another version of Python or "
                    "growthring. Resume with those, or from a stage whose fades had ended."
                )
            fades[place] = _fade(self._places[place], s["start"].clone())
            fades[place].advance(float(s["progress"]))
        self._restore(fades)

    def _check(self) -> None:
        """Refuses a model in which a module that fades was put in another's place, or does not fade any more."""
        for path, stand_in in self._stand_ins.items():
            if self.model.get_submodule(path) is not stand_in.module:
                raise FadeError(
                    f"'{path}' was replaced by another {type(stand_in.module).__name__} while its statistics fade "
                    "in, and the new one does not fade. Replace modules before a growth, or after "
                    "Grower.finish()."
                )
            forward = vars(stand_in.module).get("forward")
            if (
                forward is None
                or getattr(forward, "__func__", None) is type(stand_in.module).forward
            ):
                raise FadeError(
                    f"'{path}' ({type(stand_in.module).__name__}) got the forward of its class back while its "
                    "statistics fade in, and computes something else since. Unwrap it "
                    "(accelerator.unwrap_model(..., keep_fp32_wrapper=False)) when nothing fades in."
                )

    def _begin(self, place: FadePlace, fade: Fade) -> None:
        path, site, position = place
        if path not in self._stand_ins:
            known = frozenset(s for module, s, _ in self._places if module == path)
            self._stand_ins[path] = FadedForward(self.model.get_submodule(path), known)
            self._stand_ins[path].begin()
        fade.place(next(self.model.parameters()).device)
        self._stand_ins[path].table.fades.setdefault(site, {})[position] = fade
        self._fades[place] = fade

    def _restore(self, fades: Mapping[FadePlace, Fade]) -> None:
        kept = dict(fades)
        self.finish()
        for place, fade in kept.items():
            self._begin(place, fade)
