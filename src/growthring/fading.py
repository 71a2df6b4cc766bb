"""Statistics that fade in: a layer norm or RMS norm over a width that has just grown.

New entries would change the mean and variance of every token, so they start with weight 0 in the
statistics, which makes the growth exact, and anneal to weight 1 over the stage; then the layer is
the plain one again. While this lasts the module's `forward`
is replaced on the instance: no parameter, buffer, hook or wrapper is added, and the state_dict
keeps the user's keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from growthring.core.axes import layout
from growthring.graph.recognise import NormFormula
from growthring.graph.rules.walk import Statistics


class Fade:
    """The statistics weights of one norm.

    Attributes:
        start: weight of each entry when the fade began (1 for old entries, 0 for new ones).
        progress: 0 … 1; the weights are start + (1 - start) · progress.
    """

    def __init__(self, start: torch.Tensor, progress: float = 0.0) -> None:
        self.start, self.progress = start, progress
        self._weights: torch.Tensor | None = None

    @property
    def weights(self) -> torch.Tensor:
        """Present weights, between 0 and 1."""
        return self.start + (1 - self.start) * self.progress

    def shares(self, like: torch.Tensor) -> torch.Tensor:
        """Present weights, normalised to sum 1, for a tensor of this type and device."""
        if (
            self._weights is None
            or self._weights.device != like.device
            or self._weights.dtype != like.dtype
        ):
            with torch.inference_mode(False):  # kept for training as well
                weights = self.weights
                self._weights = (weights / weights.sum()).to(like)
        return self._weights

    def advance(self, progress: float) -> None:
        """Moves on to a share of the stage."""
        if progress != self.progress:
            self.progress, self._weights = progress, None

    def normalise(
        self,
        formula: NormFormula,
        x: torch.Tensor,
        gain: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """The norm with the present weights."""
        if x.is_nested:  # what nn.TransformerEncoder makes of padded sequences in eval mode
            parts = [self.normalise(formula, part, gain, bias) for part in x.unbind()]
            return torch.nested.as_nested_tensor(parts)
        wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
        return formula(x, gain, bias, self.shares(torch.empty(0, dtype=wide, device=x.device)))


class _Intercept(TorchFunctionMode):
    """Replaces the layer and RMS norms that a module's own code calls, told apart by their order."""

    def __init__(self, module: nn.Module, fades: Mapping[int, Fade]) -> None:
        super().__init__()
        self.fades, self.order = fades, -1
        self.of_children = {id(p) for child in module.children() for p in child.parameters()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in ("layer_norm", "rms_norm"):
            return func(*args, **kwargs)
        names = ["input", "normalized_shape", "weight", "bias", "eps"]
        if name == "rms_norm":
            names.remove("bias")
        given = dict(zip(names, args, strict=False)) | kwargs
        if id(given.get("weight")) in self.of_children:
            return func(*args, **kwargs)
        self.order += 1
        fade = self.fades.get(self.order)
        if fade is None or tuple(given["normalized_shape"]) != (len(fade.start),):
            return func(*args, **kwargs)
        x = given["input"]
        eps = given.get("eps", 1e-5 if name == "layer_norm" else None)
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        formula = NormFormula(name == "layer_norm", eps, 0.0)
        with torch._C.DisableTorchFunction():
            return fade.normalise(formula, x, given.get("weight"), given.get("bias"))


class FadedForward:
    """Stands in for the forward of a module while the statistics of its norms fade in.

    Attributes:
        module: the module.
        formula: the whole module's formula, where it is one norm.
        fades: for the norms that its code runs, in order, those that fade.
        hook: keeps torch's fused encoder layer from reading the norm's parameters itself.
    """

    def __init__(self, module: nn.Module, formula: NormFormula | None) -> None:
        self.module, self.formula = module, formula
        self.fades: dict[int, Fade] = {}
        self.hook: RemovableHandle | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward with faded statistics."""
        if self.formula is not None:
            parameters = list(self.module.parameters(recurse=False))
            gain = parameters[0] if parameters else None
            bias = parameters[1] if len(parameters) > 1 else None
            x = args[0] if args else next(iter(kwargs.values()))
            return self.fades[0].normalise(self.formula, x, gain, bias)
        with _Intercept(self.module, self.fades):
            return type(self.module).forward(self.module, *args, **kwargs)


def _formula_of(module: nn.Module, recognised: NormFormula | None) -> NormFormula | None:
    """The formula of a norm module, or None where its code has to be run and intercepted."""
    if recognised is not None:
        return recognised
    if type(module) is nn.LayerNorm:
        return NormFormula(True, module.eps, 0.0)
    if type(module) is nn.RMSNorm and module.eps is not None:
        return NormFormula(False, module.eps, 0.0)
    return None


def _nothing(module: nn.Module, args: Any, output: Any) -> None:
    """A forward hook that leaves the output alone."""


def begin(module: nn.Module, order: int, fade: Fade, recognised: NormFormula | None) -> None:
    """Replaces the module's forward on the instance, or adds a fade to the one that stands in already."""
    stand_in = vars(module).get("forward")
    if not isinstance(stand_in, FadedForward):
        stand_in = FadedForward(module, _formula_of(module, recognised))
        stand_in.hook = module.register_forward_hook(_nothing)
        module.forward = stand_in
    stand_in.fades[order] = fade


def end(module: nn.Module) -> None:
    """Gives the module its own forward back."""
    stand_in = vars(module).get("forward")
    if isinstance(stand_in, FadedForward):
        if stand_in.hook is not None:
            stand_in.hook.remove()
        del module.forward


class Fades:
    """All the fades that are under way on a model, by module and order.

    Args:
        model: the model; fades that another grower began on it are taken over.
        norms: formulas of the norms that were recognised by running them.
    """

    def __init__(self, model: nn.Module, norms: Mapping[str, NormFormula]) -> None:
        self.model, self.norms = model, norms
        self._fades: dict[tuple[str, int], Fade] = {}
        for path, module in model.named_modules():
            stand_in = vars(module).get("forward")
            if isinstance(stand_in, FadedForward):
                self._fades |= {(path, order): fade for order, fade in stand_in.fades.items()}

    def __len__(self) -> int:
        return len(self._fades)

    def extend(
        self, statistics: Sequence[Statistics], before: Mapping[int, int], after: Mapping[int, int]
    ) -> None:
        """Lets the new entries of every norm that grew fade in.

        Entries that are still fading from an earlier growth go on from where they are.
        """
        grown = [(s, layout(s.axis, before, after)) for s in statistics]
        for s, lay in grown:
            if lay.grows:
                previous = self._fades.get((s.module, s.order))
                start = torch.zeros(len(lay.source), dtype=torch.float64)
                start[lay.old] = 1.0 if previous is None else previous.weights
                self._begin((s.module, s.order), Fade(start))

    def advance(self, progress: float) -> None:
        """Moves every fade on."""
        for fade in self._fades.values():
            fade.advance(progress)

    def finish(self) -> None:
        """Gives every module its own forward back."""
        for path, _ in self._fades:
            end(self.model.get_submodule(path))
        self._fades.clear()

    def progress(self) -> dict[str, float]:
        """How far each module's norms are."""
        return {path: fade.progress for (path, _), fade in self._fades.items()}

    def state_dict(self) -> list[dict[str, Any]]:
        """Where each fade began and how far it is."""
        return [
            {"module": path, "order": order, "start": f.start.clone(), "progress": f.progress}
            for (path, order), f in self._fades.items()
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Begins the saved fades anew."""
        self._restore(
            {
                (s["module"], int(s["order"])): Fade(s["start"].clone(), float(s["progress"]))
                for s in state
            }
        )

    def _begin(self, place: tuple[str, int], fade: Fade) -> None:
        path, order = place
        self._fades[place] = fade
        begin(self.model.get_submodule(path), order, fade, self.norms.get(path))

    def _restore(self, fades: Mapping[tuple[str, int], Fade]) -> None:
        self.finish()
        for place, fade in fades.items():
            self._begin(place, fade)
