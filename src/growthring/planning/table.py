"""A plan as text: its stages, what they cost, what keeps its full size, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from growthring.core.wording import counted
from growthring.planning.kept import Kept

_BARS = "▁▂▃▄▅▆▇█"
_MOST_KEPT = 5
_WORTH_SAYING = 0.005  # of the cost


def plan_text(model: str, plan: Mapping[str, Any]) -> str:
    """What `print(plan)` shows.

    Args:
        model: what the model is called.
        plan: what `Plan.as_dict` says.
    """
    head = f"Plan: {model} in {counted(plan['stages'], 'stage')}"
    notes = (f"note: {note}" for note in plan["notes"])
    return "\n".join([head, *_aligned(_rows(plan)), *_costs(plan), *_kept(plan), *notes])


def _rows(plan: Mapping[str, Any]) -> list[list[str]]:
    rows = [["stage", *map(str, range(plan["stages"]))]]
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name in plan["widths"][0]:
        over = tuple(widths[name] for widths in plan["widths"])
        alike.setdefault((plan.get("roles", {}).get(name, ""), over), []).append(name)
    for (role, over), names in alike.items():
        more = f" (+ {len(names) - 1} alike)" if len(names) > 1 else ""
        rows.append([names[0] + (f", {role}" if role else "") + more, *map(str, over)])
    rows.append(["parameters", *(f"{number:,}" for number in plan["parameters"])])
    if plan["epochs"]:
        rows.append(["epochs", *map(str, plan["epochs"])])
    if plan["steps"]:
        rows.append(["steps", *(f"{number:,}" for number in plan["steps"])])
    if not plan["epochs"] and not plan["steps"]:
        rows.append(["share of training", *(f"{share:.0%}" for share in plan["shares"])])
    if "data_shares" in plan:
        rows.append(["data", *(f"{share:.0%}" for share in plan["data_shares"])])
    if plan["batch_sizes"]:
        rows.append(["batch size", *map(str, plan["batch_sizes"])])
        rows.append(["memory, MB", *(f"{size / 1e6:.0f}" for size in plan["memory_bytes"])])
    full = plan["flops"][-1]
    shares = [flops / full if full else 1.0 for flops in plan["flops"]]
    rows.append(["FLOPs", *(f"{share:.1%}" for share in shares)])
    if "seconds" in plan:
        rows.append(["seconds per step", *(f"{s:.3g}" for s in plan["seconds"])])
        if "compile_seconds" in plan:
            compiling = (f"{s:.0f}" if s else "–" for s in plan["compile_seconds"])
            rows.append(["seconds of compiling", *compiling])
        rows.append(["seconds per example", *(f"{s:.1%}" for s in plan["relative_seconds"])])
    rows.append(["", *(_BARS[round(share * (len(_BARS) - 1))] * 4 for share in shares)])
    return rows


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines: the first column to the left, the others to the right."""
    columns = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [c.rjust(n) for c, n in zip(rest, columns[1:], strict=True)]
        lines.append("  ".join([first.ljust(columns[0]), *cells]))
    return lines


def _costs(plan: Mapping[str, Any]) -> list[str]:
    lines = []
    if plan["shares"]:
        whole = ""
        for unit in ("step", "epoch"):
            if plan[f"{unit}s"]:
                whole = f" ({counted(sum(plan[f'{unit}s']), unit)})"
        lines.append(
            f"Training costs {plan['flops_share']:.2%} of the FLOPs of fixed-size training{whole}."
        )
    if "seconds_share" in plan:
        more = ", those of compiling included" if any(plan.get("compile_seconds", ())) else ""
        share = f"{plan['seconds_share']:.1%} of the seconds of fixed-size training"
        lines.append(f"Measured on this machine: {share}{more}.")
    return lines


def _kept(plan: Mapping[str, Any]) -> list[str]:
    """What keeps its full size, and what training would cost if it did not."""
    kept = [Kept(**entry) for entry in plan["kept"]]
    lines = [str(each) for each in kept[:_MOST_KEPT]]
    rest = sum(len(each.widths) for each in kept[_MOST_KEPT:])
    if rest:
        keep = "width keeps its" if rest == 1 else "widths keep their"
        lines.append(f"{rest} more {keep} full size: print(plan.groups) says why.")
    share, if_grown = plan["flops_share"], plan["flops_share_if_grown"]
    if kept and share - if_grown > _WORTH_SAYING:
        it = "it" if sum(len(each.widths) for each in kept) == 1 else "they"
        lines.append(
            f"If {it} grew like the others, training would cost about {if_grown:.2%} instead of {share:.2%}."
        )
    return lines
