"""Memory: what growth has to remember, and how a model takes it up again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from growthring.errors import InputError
from growthring.growing.matching import check_saved_osgd
from growthring.growing.subjects import Subjects
from growthring.optim.state import drop_state


def remembered(subjects: Subjects) -> dict[str, Any]:
    """Stage, steps, rings, fades and generator, as plain values and tensors."""
    plan, osgd = subjects.plan, subjects.osgd
    return {
        "stage": subjects.stage,
        "rings": subjects.rings.state_dict(),
        "widths": [plan.named_widths(t) for t in range(plan.num_stages)],
        "fades": subjects.main.fades.state_dict(),
        "generator": subjects.generator.get_state(),
        "pace": subjects.pace.state_dict(),
        **({} if osgd is None else {"osgd": osgd.state_dict()}),
    }


def take_up(subjects: Subjects, stage: int, state: Mapping[str, Any]) -> None:
    """Brings all subjects to the shapes of a saved stage; who calls it takes back what a failure leaves.

    Args:
        subjects: at that stage or before it.
        stage: that was saved.
        state: what was remembered.
    """
    with subjects.ranks.together():
        _take_up(subjects, stage, state)
        subjects.wrapping.renew()
    subjects.ranks.same(subjects.place)


def _take_up(subjects: Subjects, stage: int, state: Mapping[str, Any]) -> None:
    check_saved_osgd(state, subjects.osgd is not None)
    step = subjects.step_to(stage, "off")
    for module in subjects.modules:
        module.enter(step)
        module.fades.load_state_dict(state["fades"])
    subjects.rings.load_state_dict(state["rings"])
    if subjects.stage != stage:
        raise InputError(
            f"the saved rings are those of stage {subjects.stage}, the saved growth is at stage {stage}: "
            "the state is not whole."
        )
    for optimizer in subjects.optimizers:
        drop_state(optimizer, subjects.main.tensors.values())
    subjects.tell_rings()
    subjects.generator.set_state(state["generator"])
    subjects.pace.load_state_dict(state.get("pace", {}), stage, len(subjects.main.fades))
    if subjects.osgd is not None and "osgd" in state:
        subjects.osgd.load_state_dict(state["osgd"])
    subjects.pace.is_saved = True  # just so
