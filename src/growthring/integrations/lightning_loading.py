"""Loading what Lightning saved at any stage: shapes before the weights, and what was fading in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from growthring.growing.fading import Fades
from growthring.growing.matching import check_saved
from growthring.growing.shapes import models_in, take_saved_shapes
from growthring.planning.plan import Plan


def state_key(module: str | None) -> str:
    """Under which a checkpoint has the growth of a model, by the name that the callback was told.

    >>> state_key(None), state_key("net")
    ('GrowthCallback', "GrowthCallback('net')")
    """
    return "GrowthCallback" if module is None else f"GrowthCallback({module!r})"


def saved_growth(checkpoint: Mapping[str, Any], module: str | None) -> dict[str, Any] | None:
    """The callback's part of a checkpoint, if it has one.

    >>> saved_growth({"callbacks": {"GrowthCallback": {"offset": 0}}}, None)
    {'offset': 0}
    """
    state: dict[str, Any] | None = (checkpoint.get("callbacks") or {}).get(state_key(module))
    return state


def begin_fades(models: Iterable[nn.Module], plan: Plan, growth: Mapping[str, Any]) -> None:
    """Lets norms fade in as far as they did when models were saved.

    Args:
        models: the model and its averages.
        plan: that they follow.
        growth: of `Grower.state_dict()`.
    """
    check_saved(growth, plan, 0)
    for model in models:
        Fades(model, plan.groups.statistics).load_state_dict(growth["fades"])


def match_checkpoint(
    pl_module: Any,
    plan: Plan,
    checkpoint: Mapping[str, Any],
    module: str | None = None,
    averages: Sequence[str] = (),
) -> None:
    """Brings a LightningModule to the stage that a checkpoint was saved in, before it loads the weights.

    For `LightningModule.on_load_checkpoint(self, checkpoint)`: with it `load_from_checkpoint`, which knows of no
    callbacks, works at any stage.

    Args:
        pl_module: built around the seed, or a model of any other stage.
        plan: that it was trained with.
        checkpoint: what `on_load_checkpoint` was given.
        module: as the callback was told.
        averages: as the callback was told.

    >>> import growthring as gr, lightning.pytorch as pl, torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan, model = gr.plan(net, torch.ones(1, 4), total_steps=6), pl.LightningModule()
    >>> model.net = plan.build_seed()
    >>> match_checkpoint(model, plan, {"state_dict": {"net.0.weight": torch.ones(8, 4)}})
    >>> model.net[0].out_features
    8
    """

    def find(root: nn.Module) -> dict[str, nn.Module]:
        return models_in(root, plan, module, averages)

    take_saved_shapes(pl_module, plan, find, checkpoint["state_dict"])
    state = saved_growth(checkpoint, module)
    if state is not None:
        begin_fades(find(pl_module).values(), plan, state["growth"])
