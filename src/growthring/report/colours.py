"""Colours that stay apart for colour-blind eyes, in light and in dark, as CSS variables."""

from __future__ import annotations

from collections.abc import Sequence

# After Okabe and Ito, darkened and lightened for contrast with the background; the last is neutral.
_LIGHT = ("#0072b2", "#d55e00", "#008a64", "#b5508c", "#a87600", "#2f97dd", "#5c6168")
_DARK = ("#4aa5f0", "#ff8f4d", "#35c99b", "#e796c6", "#e3b53c", "#a3dcff", "#b3b9c0")
_DASHES = (None, "7 4", "2 3", "9 3 2 3")
NUM_RING_COLOURS = 12
# Lightness rises along the ring ramps, so that neighbours stay in order without hue.
_RINGS_LIGHT = ("#3b1f63", "#31688e", "#21918c", "#4fb86a", "#b3cf2f")
_RINGS_DARK = ("#7a5cc0", "#4e8fc7", "#35b7a5", "#8ad45f", "#f2e55c")


def line_styles(fixed: Sequence[bool]) -> list[tuple[str, str | None]]:
    """Returns a colour and a dash for each configuration: no two alike up to 24 of them.

    Fixed-size ones are neutral, unless there are too many of them.

    >>> line_styles([False, True, False])
    [('var(--c0)', None), ('var(--c6)', None), ('var(--c1)', None)]
    """
    neutral = len(_LIGHT) - 1
    apart = 0 < sum(fixed) <= len(_DASHES)
    styles = []
    num_fixed = num_grown = 0
    for is_fixed in fixed:
        if is_fixed and apart:
            styles.append((f"var(--c{neutral})", _DASHES[num_fixed]))
            num_fixed += 1
        else:
            dash = _DASHES[num_grown // neutral % len(_DASHES)]
            styles.append((f"var(--c{num_grown % neutral})", dash))
            num_grown += 1
    return styles


def ring_colour(ring: int, num_rings: int) -> str:
    """Returns the colour of a ring, from the seed's to the last one's.

    >>> ring_colour(0, 3), ring_colour(2, 3), ring_colour(0, 1)
    ('var(--r0)', 'var(--r11)', 'var(--r0)')
    """
    index = round(ring * (NUM_RING_COLOURS - 1) / max(1, num_rings - 1))
    return f"var(--r{min(index, NUM_RING_COLOURS - 1)})"


def variables(dark: bool) -> str:
    """Returns the CSS variables of one colour scheme."""
    colours = _DARK if dark else _LIGHT
    stops = _RINGS_DARK if dark else _RINGS_LIGHT
    by_name = {f"c{i}": colour for i, colour in enumerate(colours)}
    for i in range(NUM_RING_COLOURS):
        by_name[f"r{i}"] = _between(stops, i / (NUM_RING_COLOURS - 1))
    return "".join(f"--{name}:{value};" for name, value in by_name.items())


def _between(stops: Sequence[str], position: float) -> str:
    place = position * (len(stops) - 1)
    index = min(int(place), len(stops) - 2)
    rest = place - index
    first, second = (
        [int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in stops[index : index + 2]
    )
    mixed = (round(a + (b - a) * rest) for a, b in zip(first, second, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)
