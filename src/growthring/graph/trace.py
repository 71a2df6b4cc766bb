"""A model and example inputs -> a flat list of ATen operators on values of known shape.

`torch.export` (non-strict) runs the unmodified forward pass on fake tensors, so nothing is computed
and no memory is spent; it keeps operators at the level of `aten.linear` or `aten.layer_norm`, where
one rule each says what happens to axes. Sub-graphs (`torch.no_grad` blocks, both branches of a
`torch.cond`) are inlined, lists of tensors taken apart, writes into memory followed through views
(see `growthring.graph.memory`).
"""

from __future__ import annotations

import contextlib
import contextvars
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx.experimental.symbolic_shapes
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import transformer

from growthring.errors import InputError, TraceError
from growthring.graph.flatten import flatten
from growthring.graph.isolation import (
    call,
    callers_settings,
    copied,
    fixed_random,
    unheard,
    untouched,
)
from growthring.graph.operators import BRANCH as BRANCH, Op as Op, Trace as Trace, Value as Value
from growthring.graph.results import Leavings, output_tensors
from growthring.graph.sites import SiteRecorder
from growthring.graph.snapshot import Snapshot
from growthring.graph.standins import StandIns, may_pack, would_help
from growthring.graph.watch import watch_reads

ExampleInputs = torch.Tensor | Sequence[Any] | Mapping[str, Any]


def split_inputs(example_inputs: ExampleInputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and keyword arguments: a tensor, a sequence, or a mapping by name.

    >>> split_inputs(torch.zeros(2))[0][0].shape
    torch.Size([2])
    """
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, Sequence) and not isinstance(example_inputs, (str, bytes)):
        return tuple(example_inputs), {}
    raise InputError(
        f"example_inputs is a {type(example_inputs).__name__}; pass a tensor, a tuple of "
        "positional arguments "
        "or a dict of keyword arguments, as for one call of the model."
    )


class _Flat(nn.Module):
    """Calls the model and returns its tensors as a list, so that any output type can be exported.

    With `names`, only those parts of what it returns; without, also what it leaves on its modules.
    """

    def __init__(
        self, model: nn.Module, names: Sequence[str] | None, with_stand_ins: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.with_stand_ins = with_stand_ins
        self.left: list[str] = []  # filled in place: export resets attributes

    def forward(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        leavings = Leavings(self.model)
        stand_ins = StandIns() if self.with_stand_ins else contextlib.nullcontext()
        with stand_ins, SiteRecorder(self.model):
            returned = output_tensors(self.model(*args, **kwargs), self.names)
        left = leavings.tensors() if self.names is None else {}
        self.left[:] = left
        return [*returned, *left.values()]


@contextlib.contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Puts the whole model into one mode and back, module by module."""
    states = [(m, m.training) for m in model.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused operators hide the axes
    for module, _ in states:
        module.training = training
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for module, was in states:
            module.training = was


@contextlib.contextmanager
def _plain_masks() -> Iterator[None]:
    """Keeps torch's transformers from looking at a mask's values to see whether it is the causal one."""
    detect = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = detect


@contextlib.contextmanager
def _running(model: nn.Module, training: bool) -> Iterator[Snapshot]:
    """One mode, quietly, with the caller's settings; everything is as it was afterwards."""
    with (
        callers_settings(),
        untouched(model) as kept,
        fixed_random(),
        _mode(model, training),
        _quiet(),
    ):
        yield kept


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences what torch.export and the traced code say; failures are reported as errors of our own."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    # Nobody reads where each node came from, and finding out takes a tenth of the time of a trace.
    config: Any = torch.fx.config
    without_stacks = getattr(config, "do_not_emit_stack_traces", None)
    if without_stacks is not None:
        config.do_not_emit_stack_traces = True
    try:
        # torch.export prints the graph it has so far when it gives up
        with unheard(), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)
        if without_stacks is not None:
            config.do_not_emit_stack_traces = without_stacks


def trace(
    model: nn.Module,
    example_inputs: ExampleInputs,
    training: bool = False,
    watch: bool = False,
    outputs: Sequence[str] | None = None,
) -> Trace:
    """Traces one forward pass of an unmodified model.

    Args:
        model: the model; its mode and everything else are as before afterwards.
        example_inputs: what one call takes.
        training: trace in train mode instead of eval mode.
        watch: also note which whole numbers the modules' code reads.
        outputs: of an output with named parts, only these.

    >>> [op.name for op in trace(nn.Linear(2, 3), torch.zeros(1, 2)).ops]
    ['aten.linear.default']
    """
    args, kwargs = split_inputs(copied(example_inputs))
    reads: set[tuple[str, str]] = set()
    # What a cached function computed before would be a constant of the present widths: it computes anew,
    # unless that cannot be traced.
    for is_anew in (True, False):
        watching = watch_reads(model, reads) if watch else contextlib.nullcontext()
        try:
            with _running(model, training) as kept, _plain_masks(), watching:
                is_anew = is_anew and kept.empty_caches()
                # in a context of its own: what the model's code leaves in context variables goes with it
                export = contextvars.copy_context().run
                program, left = export(_export, model, outputs, args, kwargs)
            break
        except InputError:
            raise
        except Exception as error:  # torch.export raises many types, its own and the model's
            if not is_anew:
                raise _explain(model, example_inputs, training, error) from error
    try:
        result = flatten(program, model, left)
    except torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode as error:
        raise TraceError(
            f"a shape in the forward pass of {type(model).__name__} depends on the values of tensors (boolean "
            "indexing, nonzero), so width groups cannot be proven. Use torch.where or a mask that multiplies."
        ) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(
            f"the graph that torch.export makes of {type(model).__name__} has a form that is not known "
            f"({type(error).__name__}: {_first_line(error)}), so its operators cannot be analysed. Please report "
            "the model."
        ) from error
    result.reads.update(reads)
    return result


def _export(
    model: nn.Module, outputs: Sequence[str] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.export.ExportedProgram, list[str]]:
    """Runs torch.export, with stand-ins where the model may pack sequences or torch fails on what has some.

    Returns:
        What it made, and the names of the tensors that the pass left on modules.
    """

    def run(with_stand_ins: bool) -> tuple[torch.export.ExportedProgram, list[str]]:
        flat = _Flat(model, outputs, with_stand_ins)
        left = flat.left
        return torch.export.export(flat, args, kwargs, strict=False), left

    packs = may_pack(model)
    try:
        return run(packs)
    except Exception as error:
        if not packs and not would_help(error):
            raise
        with contextlib.suppress(Exception):
            return run(not packs)
        raise


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def run_once(model: nn.Module, example_inputs: ExampleInputs, training: bool = False) -> None:
    """Runs the model's own forward pass and complains if it fails; everything is put back.

    Fake tensors let some wrong types of numbers through that real ones do not.
    """
    args, kwargs = split_inputs(copied(example_inputs))
    try:
        with _running(model, training), torch.no_grad():
            tensors = output_tensors(call(model, args, kwargs))
    except Exception as error:
        raise InputError(
            "the model's own forward pass fails on the example inputs: "
            f"{type(error).__name__}: {_first_line(error)}. Pass inputs of the shape, type and device that "
            "the model is trained on."
        ) from error
    if any(isinstance(t, FakeTensor) for t in tensors):
        raise TraceError(
            f"{type(model).__name__} keeps tensors in a place that cannot be found (a cache outside of its "
            "modules, classes and files), and tracing left one without values there. Empty that cache "
            "before the model is used again, and keep such tensors in buffers or attributes."
        )


def _explain(
    model: nn.Module, inputs: ExampleInputs, training: bool, error: Exception
) -> Exception:
    """Tells a wrong input from a model that cannot be traced."""
    first_line = _first_line(error)
    try:
        run_once(model, inputs, training)
    except InputError as own:
        return own
    if "data-dependent" in str(error) or "DataDependent" in type(error).__name__:
        return TraceError(
            f"the forward pass of {type(model).__name__} branches on the values of tensors, so "
            "its operators are "
            f"not the same for every input and width groups cannot be proven ({first_line}). Move "
            "the branch out "
            "of forward, or express it with torch.where."
        )
    return TraceError(
        f"torch.export cannot trace {type(model).__name__}: {type(error).__name__}: {first_line}. "
        "Growing needs a "
        "forward pass made of tensor operators; what torch.export refuses cannot be analysed."
    )
