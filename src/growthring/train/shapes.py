"""ShapeCosts: FLOPs of examples of any shape: what is processed counts, padding included, not what was planned.

Sentences differ in length. The FLOPs of a Transformer are a polynomial of second degree in the lengths, so after a
few shapes have been counted the others follow; where they do not, each is counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from growthring.data.batch import Batch, first_examples
from growthring.graph.trace import ExampleInputs
from growthring.planning.costs import footprint, num_examples

Shape = tuple[int, ...]  # all sizes of all inputs but the number of examples, one after the other
_SMALL = 4_000_000  # parameters of models that run faster than torch follows their shapes
_SPARE = 2  # more points than a polynomial has coefficients: they show whether it is one


def shape_of(inputs: Any, count: int) -> Shape:
    """The sizes of inputs of so many examples.

    >>> import torch
    >>> shape_of((torch.ones(4, 7), torch.ones(4, 9)), 4)
    (7, 9)
    """
    sizes: list[int] = []
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, Tensor):
            has_all = leaf.dim() > 0 and leaf.shape[0] == count
            sizes += leaf.shape[1:] if has_all else leaf.shape
    return tuple(sizes)


class ShapeCosts:
    """Forward FLOPs of an example of one model, by its shape.

    Args:
        model: makes the model, whose values do not matter; called if there is a shape that is not known.
        inputs: example inputs.
        flops: of an example of theirs.

    >>> import torch
    >>> costs = ShapeCosts(lambda: nn.Linear(3, 2), torch.ones(2, 5, 3), 60.0)
    >>> [costs.flops((torch.ones(4, n, 3), None), (n, 3)) for n in (5, 6, 100)]
    [60.0, 72.0, 1200.0]
    """

    def __init__(self, model: Callable[[], nn.Module], inputs: ExampleInputs, flops: float) -> None:
        self._make = model
        self._model: nn.Module | None = None
        self._runs = False
        self._example = shape_of(inputs, num_examples(inputs))
        self._known: dict[Shape, float] = {self._example: flops}
        self._laws: dict[Shape | None, Callable[[Shape], float | None]] = {}

    def flops(self, batch: Batch, shape: Shape) -> float:
        """Of one example of a batch, whose examples have that shape."""
        if shape not in self._known:
            self._known[shape] = self._follow(shape) or self._count(batch)
        return self._known[shape]

    def _follow(self, shape: Shape) -> float | None:
        """What follows from the shapes that are known, if they follow a law."""
        like = {s: f for s, f in self._known.items() if len(s) == len(shape)}
        for pattern in (_equals(shape), None):
            if pattern not in self._laws:
                chosen = {s: f for s, f in like.items() if pattern in (None, _equals(s))}
                found = _law(chosen) if chosen else None
                if found is None:
                    continue
                self._laws[pattern] = found
            flops = self._laws[pattern](shape)
            if flops is not None:
                return flops
        return None

    def _count(self, batch: Batch) -> float:
        if self._model is None:
            self._model = self._make()
            self._runs = sum(p.numel() for p in self._model.parameters()) <= _SMALL
        return footprint(self._model, first_examples(batch, 2)[0], runs=self._runs).flops


def _equals(shape: Shape) -> Shape:
    """Which sizes are the same: batches of one length have sources and targets of it, and a law of one variable.

    >>> _equals((22, 22, 4)) == _equals((8, 8, 1)) != _equals((9, 8, 9))
    True
    """
    return tuple(shape.index(size) for size in shape)


def _law(known: dict[Shape, float]) -> Callable[[Shape], float | None] | None:
    """The polynomial of second degree through all known points, if there is one and they are enough to tell."""
    shapes = np.array(list(known), dtype=np.float64)
    varying = [i for i in range(shapes.shape[1]) if len(set(shapes[:, i])) > 1]
    # a size that always goes with another, as a mask's with its tokens', says nothing more
    columns = [
        i
        for n, i in enumerate(varying)
        if not any((shapes[:, i] == shapes[:, j]).all() for j in varying[:n])
    ]
    powers = [p for p in itertools.product(range(3), repeat=len(columns)) if sum(p) <= 2]
    if not columns or len(known) < len(powers) + _SPARE:
        return None

    def terms(points: Any) -> Any:
        return np.stack([np.prod(points[:, columns] ** np.array(p), axis=1) for p in powers], 1)

    values = np.array(list(known.values()))
    matrix = terms(shapes)
    coefficients, _, rank, _ = np.linalg.lstsq(matrix, values, rcond=None)
    if rank < len(powers) or not np.allclose(matrix @ coefficients, values, rtol=1e-9, atol=0.5):
        return None
    others = [i for i in range(shapes.shape[1]) if i not in varying]

    def law(shape: Shape) -> float | None:
        if len(shape) != shapes.shape[1]:
            return None
        point = np.array([shape], dtype=np.float64)
        is_like = all(point[0, i] == shapes[0, i] for i in others)
        pairs = [(i, j) for i in varying for j in columns if (shapes[:, i] == shapes[:, j]).all()]
        if not is_like or any(point[0, i] != point[0, j] for i, j in pairs):
            return None
        return float(np.round(terms(point) @ coefficients)[0])  # FLOPs are whole

    return law
