"""Labels of points that cover neither each other nor the points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_HEIGHT, _CHARACTER = 14.0, 6.8  # of a text of 12 pixels; a little more than most are wide
_GAPS = (7.0, 18.0, 32.0, 50.0, 70.0)  # from a point to the side of its label
_HEIGHTS = tuple(sign * step * 7.0 for step in range(14) for sign in (-1, 1))
_ROUNDS = 4
_CROSSING, _TOUCHING = 80.0, 60.0  # what an unclear label costs, in pixels of distance

Position = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle; y points down."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """Returns the area that two boxes share.

        >>> Box(0, 0, 2, 2).overlap(Box(1, 1, 5, 5))
        1.0
        """
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return float(width * height) if width > 0 and height > 0 else 0.0

    def outside(self, frame: Box) -> float:
        """Returns the area of it that is not in a frame."""
        return (self.right - self.left) * (self.bottom - self.top) - self.overlap(frame)

    def nearest(self, point: Position) -> Position:
        """Returns the place in it that is nearest to a point.

        >>> Box(0, 0, 2, 2).nearest((5, 1))
        (2, 1)
        """
        x, y = point
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)


def place(
    names: Sequence[str], points: Sequence[Position], obstacles: Sequence[Box], frame: Box
) -> list[Box]:
    """Returns a box for each name, near its point: apart from the others, from points and obstacles.

    Those with the most neighbours choose first, each the place that covers the least and is near; in
    further rounds all choose again, as the first could not know where the last would go.

    >>> a, b = place(["one", "two"], [(50, 50), (52, 50)], [], Box(0, 0, 100, 100))
    >>> a.overlap(b)
    0.0
    """
    dots = [Box(x - 5, y - 5, x + 5, y + 5) for x, y in points]

    def crowd(index: int) -> int:
        x, y = points[index]
        return sum(abs(x - a) < 80 and abs(y - b) < 30 for a, b in points)

    order = sorted(range(len(names)), key=crowd, reverse=True)
    chosen: dict[int, Box] = {}
    for _ in range(_ROUNDS):
        for index in order:
            point = points[index]
            others = [(points[i], box) for i, box in chosen.items() if i != index]
            best, least = None, math.inf
            for far, box in _candidates(names[index], point):
                if far >= least:  # they come in this order
                    break
                cost = far + _cost(point, box, others, dots, obstacles, frame)
                if cost < least:
                    best, least = box, cost
            assert best is not None
            chosen[index] = best
    return [chosen[i] for i in range(len(names))]


def _candidates(name: str, point: Position) -> list[tuple[float, Box]]:
    """Places around a point, the nearest first, each with how much the eye minds it."""
    (x, y), width = point, _CHARACTER * len(name)
    spots = []
    for dy in _HEIGHTS:
        for gap in _GAPS:
            for side, left in enumerate((x + gap, x - gap - width)):
                far = 2 * (gap - _GAPS[0]) + 1.5 * abs(dy) + side
                spots.append((far, left, y + dy))
        if abs(dy) >= 14:
            spots.append((1.5 * abs(dy) - 6, x - width / 2, y + dy))
    half = _HEIGHT / 2
    return [
        (far, Box(left, middle - half, left + width, middle + half))
        for far, left, middle in sorted(spots)
    ]


def _cost(
    point: Position,
    box: Box,
    others: Sequence[tuple[Position, Box]],
    dots: Sequence[Box],
    obstacles: Sequence[Box],
    frame: Box,
) -> float:
    end = box.nearest(point)
    cost = 50 * box.outside(frame)
    for start, other in others:
        shared = box.overlap(other)
        cost += 20 * shared + (_TOUCHING if shared else 0.0)
        if _cross(point, end, start, other.nearest(start)):
            cost += _CROSSING
    cost += 10 * sum(box.overlap(dot) for dot in dots)
    return cost + 3 * sum(box.overlap(obstacle) for obstacle in obstacles)


def _cross(a: Position, b: Position, c: Position, d: Position) -> bool:
    """Whether the segments ab and cd cross."""

    def turn(p: Position, q: Position, r: Position) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return turn(a, b, c) * turn(a, b, d) < 0 and turn(c, d, a) * turn(c, d, b) < 0
