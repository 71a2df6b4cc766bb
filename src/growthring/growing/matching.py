"""What a Grower finds out when it takes a model, averages of it and optimizers; refusals included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from growthring.core.axes import refs, size
from growthring.core.rings import RingMap
from growthring.core.variance import Mode
from growthring.core.wording import counted
from growthring.distributed.fullyshard import is_fully_sharded
from growthring.distributed.wrapping import unwrapped
from growthring.errors import GrowthStepError, InputError
from growthring.graph.agree import disagreement
from growthring.graph.groups import TensorSpec
from growthring.graph.resize import copy_with, named_tensors
from growthring.growing.osgd import DynamicOSGD
from growthring.methods import GrowthMethod, Paired, make_method
from growthring.optim.geometry import ParameterRings
from growthring.optim.held import held_optimizers
from growthring.optim.prepared import plain_optimizer
from growthring.planning.plan import Plan

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None


def find_stage(model: nn.Module, plan: Plan) -> int:
    """The stage of the plan whose shapes the model has."""
    shapes = {n: tuple(t.shape) for n, t in named_tensors(model).items()}
    specs = plan.groups.specs
    missing = [n for n in specs if n not in shapes]
    if missing:
        raise InputError(
            f"the model lacks '{missing[0]}', which the plan's model has. Pass plan.build_seed()."
        )
    for t, widths in enumerate(plan.stage_widths):
        if all(shapes[n] == spec.shape(widths) for n, spec in specs.items()):
            _check_numbers(model, plan, t)
            return t
    first = plan.stage_widths[0]
    name, spec = next((n, s) for n, s in specs.items() if shapes[n] != s.shape(first))
    raise InputError(
        f"the model has the shapes of no stage of the plan: '{name}' is {shapes[name]}, at stage 0 it "
        f"would be {spec.shape(first)}. Pass plan.build_seed()."
    )


def _check_numbers(model: nn.Module, plan: Plan, stage: int) -> None:
    """Refuses a model that has the shapes of a stage and other numbers in its code."""
    widths, full = plan.stage_widths[stage], plan.stage_widths[-1]
    axes = {
        a for spec in plan.groups.specs.values() for axis in spec.axes for a in (axis, *refs(axis))
    }
    sizes = {(size(axis, widths), size(axis, full)) for axis in axes}
    twin, inputs = plan.empty_model(stage), plan.example_inputs
    if plan.is_meta:  # compared where the plan's is
        model = copy_with(
            model, {n: t.detach().to("meta") for n, t in named_tensors(model).items()}
        )
        inputs = plan.inputs_for(twin)
    difference = disagreement(
        model, twin, inputs, plan.outputs, [(n, m) for n, m in sizes if n != m]
    )
    if difference is not None:
        place, held, wanted = difference
        raise InputError(
            f"'{'.'.join(place).lstrip('.')}' of the model is {held}, at stage {stage} of the plan it is {wanted}, "
            "and the forward pass depends on it: the model's weights would compute something else in the full "
            f"model. Build it with {wanted}, or pass plan.build_seed()."
        )


def check_shapes(module: nn.Module, plan: Plan, stage: int) -> None:
    """Refuses a module that has not the shapes of a stage."""
    tensors = named_tensors(module)
    for name, spec in plan.groups.specs.items():
        expected = spec.shape(plan.stage_widths[stage])
        if name not in tensors or tuple(tensors[name].shape) != expected:
            actual = "missing" if name not in tensors else tuple(tensors[name].shape)
            raise GrowthStepError(
                f"'{name}' is {actual} where stage {stage} of the plan has {expected}: the model was "
                "changed outside the grower."
            )


def check_widths(saved: Sequence[Mapping[str, int]], plan: Plan) -> None:
    """Refuses a saved growth whose widths are not those of the plan, and says which.

    Args:
        saved: for each stage, widths by name of the group.
        plan: the plan.
    """
    planned = [plan.named_widths(t) for t in range(plan.num_stages)]
    where = "the saved growth follows another plan"
    if len(saved) != len(planned):
        raise InputError(
            f"{where}: it has {counted(len(saved), 'stage')}, this plan has {len(planned)}."
        )
    differ: dict[str, str] = {}  # of each group, the first stage that differs
    for t, (there, here) in enumerate(zip(saved, planned, strict=True)):
        for name in dict.fromkeys([*here, *there]):
            if name not in there or name not in here:
                text = f"'{name}' grows {'here' if name in here else 'there'} only"
                differ.setdefault(name, text)
            elif there[name] != here[name]:
                text = f"'{name}' is {there[name]} wide at stage {t} there, and {here[name]} here"
                differ.setdefault(name, text)
    if differ:
        more = counted(len(differ) - 1, "more width differs", "more widths differ")
        rest = f"; {more}" if len(differ) > 1 else ""
        raise InputError(
            f"{where}: {next(iter(differ.values()))}{rest}. Load it with the plan that it was saved with."
        )


def highest_rate(optimizers: Iterable[torch.optim.Optimizer]) -> float:
    """The highest learning rate of all parameter groups; one on an accelerator is not waited for.

    >>> highest_rate([torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)])
    0.5
    """
    rates = [group.get("lr", 0.0) for one in optimizers for group in one.param_groups]
    known = (rate for rate in rates if isinstance(rate, (int, float)) or _is_at_hand(rate))
    return max((float(rate) for rate in known), default=0.0)


def _is_at_hand(rate: Any) -> bool:
    return isinstance(rate, torch.Tensor) and rate.device.type == "cpu" and rate.numel() == 1


def check_optimizers(model: nn.Module, optimizer: Any) -> list[torch.optim.Optimizer]:
    """The optimizers as a list; refuses those that would train nothing of the model."""
    given = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer or []
    if not isinstance(given, Iterable):
        raise InputError(f"optimizer is a {type(given).__name__}, not a torch optimizer.")
    own = {id(p) for p in model.parameters()}
    optimizers: list[torch.optim.Optimizer] = []
    for item in given:
        if not isinstance(item, torch.optim.Optimizer):
            raise InputError(f"optimizer holds a {type(item).__name__}, not a torch optimizer.")
        one = plain_optimizer(item)
        if any(one is other for other in optimizers):
            raise InputError(f"the same {type(one).__name__} is given twice.")
        held = [id(p) for group in one.param_groups for p in group["params"]]
        if is_fully_sharded(model) and not own.issuperset(held) and not own.issubset(held):
            raise InputError(
                f"{type(one).__name__} holds parameters that the model has not: fully_shard put shards in their "
                "places. Make the optimizer after fully_shard: Optimizer(model.parameters(), ...)."
            )
        if not any(p in own for p in held):
            raise InputError(
                f"none of the {counted(len(held), 'parameter')} of {type(one).__name__} belong to the model. "
                "Build the optimizer from the seed: Optimizer(seed.parameters(), ...)."
            )
        if len(set(held)) < len(held):
            raise InputError(
                f"a parameter is twice in {type(one).__name__}; it would be stepped twice."
            )
        optimizers.append(one)
    # What a wrapper drives grows too, after it: the wrapper knows all of a state that they share.
    held_inside = [plain_optimizer(o) for one in optimizers for o in held_optimizers(one)]
    inner = {id(o): o for o in held_inside}
    return [o for o in optimizers if id(o) not in inner] + list(inner.values())


def averaged_modules(averages: Any, model: nn.Module, plan: Plan, stage: int) -> list[nn.Module]:
    """The modules of averages of the model (`AveragedModel`, or a plain copy that a user averages in)."""
    given = [averages] if isinstance(averages, nn.Module) else list(averages or [])
    modules: list[nn.Module] = []
    taken = {id(p) for p in model.parameters()}
    for one in given:
        if not isinstance(one, nn.Module):
            raise InputError(f"averages holds a {type(one).__name__}, not a module.")
        module = unwrapped(one.module if isinstance(one, AveragedModel) else one)
        if find_stage(module, plan) != stage:
            raise InputError(
                f"an average has the shapes of stage {find_stage(module, plan)}, the model those of "
                f"stage {stage}. Make it from the model: AveragedModel(model)."
            )
        own = {id(p) for p in module.parameters()}
        if own & taken:
            raise InputError(
                "an average shares parameters with the model, or with another average: they would grow twice. "
                "Make each from the model: AveragedModel(model)."
            )
        taken |= own
        modules.append(module)
    return modules


def parameter_rings(
    model: nn.Module, plan: Plan, rings: RingMap
) -> dict[torch.Tensor, ParameterRings]:
    """What optimizers are told: the rings of every parameter."""
    parameters = dict(model.named_parameters())
    return {
        parameters[name]: ParameterRings(
            name=name,
            axes=tuple(rings.axis_rings(name)),
            num_rings=rings.num_rings,
            adapts=_adapts(plan, spec),
            output_width=_output_width(plan, spec),
        )
        for name, spec in plan.groups.specs.items()
        if name in parameters
    }


def _adapts(plan: Plan, spec: TensorSpec) -> bool:
    """Rate adaptation goes by the scale that new entries are drawn with; zeros and constants have none."""
    is_drawn = plan.initial[spec.name].constant is None and not spec.read_and_written
    return len(spec.axes) >= 2 and is_drawn and spec.kind not in ("bias", "gain")


def _output_width(plan: Plan, spec: TensorSpec) -> int | None:
    """C_0 of a weight that writes a model output: the width that it reads at stage 0."""
    if spec.kind != "weight" or spec.read_and_written or plan.role(spec) != "output":
        return None
    width = 1
    for axis in spec.reads():
        width *= size(axis, plan.stage_widths[0])
    return width


def check_arguments(
    plan: Any, generator: Any, noise: float, fade: float, unknown_state: str
) -> None:
    """Refuses arguments of a `Grower` that cannot be."""
    if not isinstance(plan, Plan):
        raise InputError(f"plan is a {type(plan).__name__}; pass what gr.plan(...) returned.")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputError(
            f"generator is a {type(generator).__name__}; pass torch.Generator().manual_seed(...)."
        )
    if not 0 < fade <= 1:
        raise InputError(f"fade={fade!r}: a share of each stage, above 0 and at most 1.")
    if not 0 <= noise < 1:
        raise InputError(
            f"noise={noise!r}: a share of the new weights' deviation, from 0 to below 1."
        )
    if unknown_state not in ("refuse", "reset"):
        raise InputError(f"unknown_state={unknown_state!r} is not 'refuse' or 'reset'.")


def check_saved(state: Mapping[str, Any], plan: Plan, at: int) -> int:
    """The stage of a saved growth that a model at stage `at` can take up."""
    missing = [k for k in ("stage", "rings", "widths", "fades", "generator") if k not in state]
    if missing:
        raise InputError(
            f"the state lacks '{missing[0]}': it is not whole, or not from Grower.state_dict()."
        )
    check_widths(state["widths"], plan)
    stage = int(state["stage"])
    if stage < at:
        raise InputError(
            f"the model is at stage {at}, the saved growth at stage {stage}; start "
            "from plan.build_seed()."
        )
    return stage


def check_osgd(model: nn.Module, osgd: Any, plan: Plan) -> None:
    """Refuses dynamic OSGD of another model, or of data with more stages than the plan; or what is none."""
    if osgd is None:
        return
    if not isinstance(osgd, DynamicOSGD):
        raise InputError(f"osgd is a {type(osgd).__name__}, not a gr.DynamicOSGD.")
    if osgd.model is not model:
        raise InputError(
            f"osgd was made for another {type(osgd.model).__name__}: make it with the model that grows, "
            "gr.DynamicOSGD(model, optimizer, ...)."
        )
    if osgd.growing is not None:
        osgd.growing.check_stages(plan.num_stages)


def check_saved_osgd(state: Mapping[str, Any], is_there: bool) -> None:
    """Refuses to go on without the dynamic OSGD that a run was saved with: its next steps would be others."""
    if "osgd" in state and not is_there:
        raise InputError(
            "the growth was saved with DynamicOSGD, and this Grower has none: make it with osgd=. To go on "
            "without, take 'osgd' out of the saved state."
        )


def chosen_method(
    method: str | GrowthMethod, variance_transfer: Mode | None, default: Mode
) -> GrowthMethod:
    """The method that was asked for; variance transfer, `default` if not given, is a matter of "paired" alone."""
    if method == Paired.name:
        return Paired(default if variance_transfer is None else variance_transfer)
    if variance_transfer is not None:
        name = method if isinstance(method, str) else getattr(method, "name", type(method).__name__)
        raise InputError(
            f"variance_transfer={variance_transfer!r}: method '{name}' has none; it is an option of method "
            f"'{Paired.name}', or of the object: Paired({variance_transfer!r})."
        )
    if isinstance(method, str):
        return make_method(method)
    needed = ("name", "searches", "mode", "check", "grow")
    missing = [name for name in needed if not hasattr(method, name)]
    if isinstance(method, type) or missing:
        raise InputError(
            f"method is a {type(method).__name__} without {', '.join(missing) or 'parentheses'}; pass a name, or "
            "an object of growthring.methods such as Net2Net()."
        )
    return method
