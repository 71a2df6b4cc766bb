"""A slow and obvious reference: each ring is a boolean mask, each formula is written as in the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import growthring as gr
from tests.growth_contract import factor_of

Buffers = dict[str, Tensor]


class Reference:
    """Steps its own copy of the parameters with the model's gradients; never looks at an optimizer.

    Args:
        formula: one of the functions below.
        outputs: output weights, and their C_0.
        options: of the optimizer, with every ring option that differs from the formula's defaults.
    """

    def __init__(
        self,
        formula: Callable[..., None],
        model: nn.Module,
        grower: gr.Grower,
        outputs: Mapping[str, int],
        **options: Any,
    ) -> None:
        self.formula, self.grower, self.outputs = formula, grower, outputs
        self.options = {"rate_adaptation": "norm", "output_rate": False, "state": "keep"} | options
        self.values = {n: p.detach().double().clone() for n, p in model.named_parameters()}
        self.buffers: dict[str, Buffers] = {n: {} for n in self.values}
        self.steps = dict.fromkeys(self.values, 0)  # that each parameter has taken
        self.births: dict[str, list[int]] = {n: [0] for n in self.values}  # in those steps
        self._masks: dict[tuple[str, int], list[Tensor]] = {}
        self.born, self.rates = [0], []  # in steps of the optimizer, for schedules

    def masks(self, name: str) -> list[Tensor]:
        rings = self.grower.rings
        key = (name, rings.num_rings)
        if key not in self._masks:
            self._masks[key] = [rings.mask(name, k) for k in range(rings.num_rings)]
        return self._masks[key]

    def ages(self, name: str) -> list[int]:
        return [self.steps[name] - b for b in self.births[name]]

    def factors(self, name: str) -> list[float]:
        w, masks = self.values[name], self.masks(name)
        rule, norms = self.options["rate_adaptation"], [float(w[m].norm()) for m in masks]
        result = [1.0] * len(masks)
        if rule is not None and w.dim() >= 2 and any(bool(m.any()) for m in masks[1:]):
            for k, norm in enumerate(norms):
                if norm == 0 or norms[0] == 0 or not math.isfinite(norm):
                    continue
                if rule == "norm":
                    result[k] = norm / norms[0]
                elif rule == "max":
                    result[k] = 1.0 if k == 0 else max(1.0, norm)
                else:
                    result[k] = float(rule(torch.tensor(norms, dtype=torch.float64))[k])
        if self.options["output_rate"] and name in self.outputs:
            result = [f / self.outputs[name] for f in result]
        if self.options.get("ring_schedule") == "own":
            result = [f * self.own(birth) for f, birth in zip(result, self.born, strict=True)]
        return result

    def own(self, birth: int) -> float:
        """The shape of the schedule, from this birth to the end."""
        total, now = self.options["total_steps"], len(self.rates) - 1
        if birth == 0 or now >= total or self.rates[now] == 0:
            return 1.0
        place = total * (now - birth) / (total - birth)
        low = math.floor(place)
        high = min(low + 1, now)
        rate = self.rates[low] * (low + 1 - place) + self.rates[high] * (place - low)
        return min(rate / self.rates[now], self.options.get("max_schedule_factor", 10.0))

    def step(self, model: nn.Module, lr: float) -> None:
        """One step with the gradients that the model has."""
        self.rates.append(lr)
        for name, p in model.named_parameters():
            if p.grad is not None:
                g = p.grad.double() * (-1 if self.options.get("maximize") else 1)
                self.steps[name] += 1
                self.formula(self, name, g, lr)

    def grow(self, model: nn.Module, report: gr.GrowthReport, stage: int) -> None:
        """Takes the new entries from the model, and keeps its own old ones."""
        rings, how = self.grower.rings, self.options["state"]
        self.born.append(len(self.rates))
        for name, p in model.named_parameters():
            old = ~rings.mask(name, rings.num_rings - 1)
            c = factor_of(self.grower.plan, name, report, stage, self.values[name])
            new = p.detach().double().clone()
            new[old] = (self.values[name] * c).flatten()
            self.values[name] = new
            if how == "reset":
                self.buffers[name], self.steps[name] = {}, 0
                self.births[name] = [0] * rings.num_rings
                continue
            for key, value in self.buffers[name].items():
                wide = torch.zeros_like(new)
                power = {"rescale": 2 if key in ("v", "top") else 1}.get(how, 0)
                wide[old] = (value / c**power).flatten()
                self.buffers[name][key] = wide
            self.births[name].append(self.steps[name])

    def error(self, model: nn.Module) -> float:
        """Largest difference, relative to the size of each parameter."""
        worst = 0.0
        for name, p in model.named_parameters():
            mine = self.values[name]
            gap = float((p.detach().double() - mine).abs().max() / mine.abs().max())
            worst = max(worst, gap)
        return worst


def sgd(ref: Reference, name: str, g: Tensor, lr: float, scale: float = 1.0) -> None:
    o, w, buffers = ref.options, ref.values[name], ref.buffers[name]
    factors = ref.factors(name)
    g = scale * (g + o.get("weight_decay", 0) * w)
    momentum = o.get("momentum", 0)
    if momentum:
        if "b" in buffers:
            buffers["b"] = momentum * buffers["b"] + (1 - o.get("dampening", 0)) * g
        else:
            buffers["b"] = g.clone()
        g = g + momentum * buffers["b"] if o.get("nesterov") else buffers["b"]
    for mask, f in zip(ref.masks(name), factors, strict=True):
        w[mask] -= lr * f * g[mask]


def lars(ref: Reference, name: str, g: Tensor, lr: float) -> None:
    w, decay = ref.values[name].norm(), ref.options.get("weight_decay", 0)
    trust = ref.options.get("trust_coefficient", 0.001)
    ratio = float(trust * w / (g.norm() + decay * w + 1e-8)) if w > 0 and g.norm() > 0 else 1.0
    sgd(ref, name, g, lr, ratio)


def adam(ref: Reference, name: str, g: Tensor, lr: float) -> None:
    o, w, buffers = ref.options, ref.values[name], ref.buffers[name]
    (beta1, beta2), eps = o.get("betas", (0.9, 0.999)), o.get("eps", 1e-8)
    factors, decay = ref.factors(name), o.get("weight_decay", 0)
    if not o.get("decoupled"):
        g = g + decay * w
    zero = torch.zeros_like(w)
    m = buffers["m"] = beta1 * buffers.get("m", zero) + (1 - beta1) * g
    v = buffers["v"] = beta2 * buffers.get("v", zero) + (1 - beta2) * g * g
    if o.get("amsgrad"):
        v = buffers["top"] = torch.maximum(buffers.get("top", zero), v)
    for mask, f, age in zip(ref.masks(name), factors, ref.ages(name), strict=True):
        if o.get("decoupled"):
            w[mask] *= 1 - lr * f * decay
        mean, square = m[mask] / (1 - beta1**age), v[mask] / (1 - beta2**age)
        w[mask] -= lr * f * mean / (square.sqrt() + eps)


def avagrad(ref: Reference, name: str, g: Tensor, lr: float) -> None:
    o, w, buffers = ref.options, ref.values[name], ref.buffers[name]
    (beta1, beta2), eps = o.get("betas", (0.9, 0.999)), o.get("eps", 0.1)
    factors = ref.factors(name)
    g = g + o.get("weight_decay", 0) * w
    zero = torch.zeros_like(w)
    m = buffers["m"] = beta1 * buffers.get("m", zero) + (1 - beta1) * g
    v = buffers.get("v", zero)
    for mask, f, age in zip(ref.masks(name), factors, ref.ages(name), strict=True):
        if age > 1 and bool(mask.any()):
            eta = 1 / ((v[mask] / (1 - beta2 ** (age - 1))).sqrt() + eps)
            size = (eta / math.sqrt(int(mask.sum()))).norm()
            w[mask] -= lr * f * eta / size * m[mask] / (1 - beta1**age)
    buffers["v"] = beta2 * v + (1 - beta2) * g * g
