"""Models nobody here wrote: each grows through three stages exactly, or is refused with the reason."""

import copy
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.core.axes import layout
from growthring.graph.results import output_tensors
from growthring.graph.trace import ExampleInputs, split_inputs, trace
from scripts.models import CATALOGUE
from scripts.models.entry import Entry
from scripts.models.growing import (
    LEAST_SENSITIVITY,
    STAGES,
    Prepared,
    bound,
    grow_through,
    perturbed_seed,
    prepare,
)

# Shuffles pairs into another order in train mode, and what is dropped is random anyway.
_RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)


def _marks(entry: Entry, is_slow: bool) -> list[Any]:
    """Tests of one model run in one process, one after the other: planning it is most of their time."""
    return [pytest.mark.xdist_group(entry.label), *([pytest.mark.slow] if is_slow else [])]


def _marked(entries: list[Entry]) -> list[Any]:
    return [pytest.param(e, id=e.label, marks=_marks(e, not e.fast)) for e in entries]


_last: dict[str, tuple[Prepared, gr.Plan]] = {}  # of one model: some are large


def _planned(entry: Entry) -> tuple[Prepared, gr.Plan]:
    """In double precision where its code runs so; both are only read."""
    if entry.label not in _last:
        _last.clear()
        prepared = prepare(entry, quick=True)
        double = prepared.to(torch.float64)
        prepared = double if double.runs() else double.to(torch.float32)
        _last[entry.label] = prepared, prepared.plan()
    return _last[entry.label]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", _marked([e for e in CATALOGUE if e.expect == "grows"]))
@pytest.mark.each(9)
def test_grows_exactly_into_the_given_model(entry: Entry) -> None:
    prepared, plan = _planned(entry)
    share = plan.num_parameters(0) / plan.num_parameters(STAGES - 1)
    assert share <= entry.seed_share, f"much is frozen:\n{plan.groups.explain()}"
    outcome = grow_through(plan, prepared.fresh_inputs, "off")
    grown = outcome.model
    assert outcome.sensitivity >= LEAST_SENSITIVITY, "the test would pass whatever grew"
    dtype = next(grown.parameters()).dtype
    assert outcome.worst <= bound(dtype, "off", rounding=outcome.rounding)
    assert (outcome.worst_training or 0.0) <= bound(
        dtype, "off", training=True, rounding=outcome.rounding_training
    )
    full = copy.deepcopy(prepared.model)
    full.load_state_dict(grown.state_dict(), strict=True)
    change = gr.verify(grown, full, prepared.inputs, entry.options.get("outputs"))
    assert change.absolute == 0.0


def _other_methods() -> list[Any]:
    """Both of them for one model of each library, one and the other by turns for the rest."""
    cases = []
    for i, entry in enumerate(e for e in CATALOGUE if e.expect == "grows"):
        methods = ("net2net", "random")
        for method in methods if entry.fast else (methods[i % 2],):
            case = f"{entry.label}-{method}"
            cases.append(pytest.param(entry, method, id=case, marks=_marks(entry, True)))
    return cases


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("entry", "method"), _other_methods())
def test_other_methods_grow_exactly_or_refuse(entry: Entry, method: str) -> None:
    prepared, plan = _planned(entry)
    try:
        outcome = grow_through(plan, prepared.fresh_inputs, "off", method)
    except gr.GrowthError as error:
        assert method in str(error)
        return
    shapes = {n: t.shape for n, t in prepared.model.state_dict().items()}
    assert {n: t.shape for n, t in outcome.model.state_dict().items()} == shapes
    assert all(bool(torch.isfinite(p).all()) for p in outcome.model.parameters())
    if method == "net2net":
        dtype = next(outcome.model.parameters()).dtype
        # weights that are divided among copies are rounded once more
        assert outcome.worst <= 2 * bound(dtype, "off", rounding=outcome.rounding)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", _marked([e for e in CATALOGUE if e.expect == "refused"]))
def test_refusal_names_the_reason(entry: Entry) -> None:
    with pytest.raises(gr.GrowthError) as caught:
        prepare(entry, quick=True).plan()
    assert entry.because in str(caught.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", _marked([e for e in CATALOGUE if e.trains]))
@pytest.mark.each(8)
def test_training_pass_and_gradients_of_old_entries_stay(entry: Entry) -> None:
    """In train mode, gradients are those of before, divided by a tensor's factor where it has one."""
    prepared, plan = _planned(entry)
    model = perturbed_seed(plan)
    grower = gr.Grower(model, plan, variance_transfer="off", noise=0.0)
    limit = 1e-9 if _coarsest(prepared) < 1e-10 else 1e-3
    while not grower.is_full:
        widths = [plan.stage_widths[t] for t in (grower.stage, grower.stage + 1)]
        before = _gradients(model, prepared.fresh_inputs, plan.outputs)
        report = grower.grow()
        after = _gradients(model, prepared.fresh_inputs, plan.outputs)
        largest = max(float(g.abs().max()) for g in before.values())
        for name, old in before.items():
            new = after[name] * report.factors.get(name, 1.0)
            for i, axis in enumerate(plan.groups.specs[name].axes):
                new = new.index_select(i, layout(axis, *widths).old)
            assert torch.allclose(new, old, rtol=0, atol=limit * largest), name


def _coarsest(prepared: Prepared) -> float:
    """Machine epsilon of the coarsest type that the model's code computes in: some cast to float32 inside."""
    values = [v for op in trace(prepared.model, prepared.inputs).ops for v in op.outputs]
    types = {v.dtype for v in values if v.dtype.is_floating_point or v.dtype.is_complex}
    return max(torch.finfo(t).eps for t in types)


def _gradients(
    model: nn.Module, inputs: ExampleInputs, names: list[str] | None
) -> Mapping[str, torch.Tensor]:
    """Gradients in train mode of a fixed random combination of the outputs; the model stays as it was."""
    twin = copy.deepcopy(model).train()
    for module in twin.modules():
        if isinstance(module, _RANDOM):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0  # nn.MultiheadAttention
    for name in ("attention_dropout", "dropout_prob", "attention_dropout_prob"):
        for module in twin.modules():
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    args, kwargs = split_inputs(inputs)
    generator = torch.Generator().manual_seed(0)
    outputs = output_tensors(twin(*args, **kwargs), names)
    loss = sum((o * torch.randn(o.shape, generator=generator).to(o)).sum() for o in outputs)
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    return {n: p.grad for n, p in twin.named_parameters() if p.grad is not None}


@pytest.mark.slow  # a process of its own
def test_other_libraries_find_a_torchvision_that_works_or_none() -> None:
    pytest.importorskip("transformers")
    code = "from transformers import AutoModel, CLIPModel, ViTForImageClassification, ViTModel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
