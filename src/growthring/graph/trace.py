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
import itertools
import logging
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.fx.experimental.symbolic_shapes
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind
from torch.nn.modules import transformer

from growthring.errors import InputError, TraceError
from growthring.graph.memory import follow_writes
from growthring.graph.results import Leavings, output_tensors
from growthring.graph.running import callers_settings, copied, fixed_random, untouched
from growthring.graph.sites import META, SiteRecorder
from growthring.graph.snapshot import Snapshot
from growthring.graph.standins import StandIns, may_pack, would_help
from growthring.graph.symbols import stand_in
from growthring.graph.watch import watch_reads

BRANCH = "(branch)"  # begins the call of an operator that only runs under a condition
ExampleInputs = torch.Tensor | Sequence[Any] | Mapping[str, Any]


# Operators of torch that take the mode as an argument: their rules hold in both modes.
_MODAL = (
    "aten.batch_norm", "aten.native_batch_norm", "aten.dropout", "aten.feature_dropout", "aten.alpha_dropout",
    "aten.native_dropout", "aten.rrelu", "aten.scaled_dot_product_attention", "aten.instance_norm",
)  # fmt: skip

# Operators that change where entries lie in memory, which may depend on the mode, and nothing else.
_LAYOUT = ("aten.contiguous", "aten.clone")


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor in the traced graph. Compared by identity.

    `storage` names the memory that it lies in: views of one tensor share it (0: not known).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: int = field(default=0, repr=False)


@dataclass(frozen=True, eq=False)
class Op:
    """One operator call.

    Attributes:
        name: `aten.linear.default` and the like.
        args: positional arguments, tensors replaced by `Value`.
        kwargs: keyword arguments, likewise.
        outputs: the values it returns.
        module: qualified name of the module whose forward called it ("" is the model itself).
        call: names the call of that module (a module may be called several times).
        writes: those of its inputs that it changes in place.
        site: of a reduction that the code calls by name: the module that runs it, and where in its code.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Value, ...]
    module: str
    call: str = ""
    writes: tuple[Value, ...] = ()
    site: tuple[str, str] | None = None

    def where(self) -> str:
        """For messages: the operator and the module that calls it."""
        return f"operator '{self.name.rsplit('.', 1)[0]}' in '{self.module or '(model)'}'"

    def inputs(self) -> Iterator[Value]:
        """The tensors it takes."""
        yield from _values((self.args, dict(self.kwargs)))


@dataclass(frozen=True)
class Trace:
    """The operators of one forward pass, in order.

    Attributes:
        ops: the operators.
        parameters: value -> name of the parameter, a tied one under its first name.
        buffers: value -> name of the buffer.
        inputs: value -> description of the model input.
        outputs: the tensors that the model returns.
        left: value -> name of the attribute that the forward pass leaves it in (an auxiliary loss, features).
        constants: value -> the tensor that the model's code made or holds by itself.
        reads: (module, attribute) of whole numbers that the modules' code read during the pass.
    """

    ops: list[Op] = field(default_factory=list)
    parameters: dict[Value, str] = field(default_factory=dict)
    buffers: dict[Value, str] = field(default_factory=dict)
    inputs: dict[Value, str] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)
    left: dict[Value, str] = field(default_factory=dict)
    constants: dict[Value, torch.Tensor] = field(default_factory=dict)
    reads: set[tuple[str, str]] = field(default_factory=set)

    @property
    def precision(self) -> float:
        """Machine epsilon of the coarsest floating-point type among the values."""
        dtypes = {v.dtype for op in self.ops for v in op.outputs}
        types = {t for t in dtypes if t.is_floating_point or t.is_complex}
        return max((torch.finfo(t).eps for t in types), default=0.0)

    def used_parameters(self) -> set[str]:
        """Parameters that some operator takes (every parameter of the model is an input of the graph)."""
        used = {value for op in self.ops for value in op.inputs()}
        return {name for value, name in self.parameters.items() if value in used}

    def signature(self) -> list[Any]:
        """The operators, their arguments and shapes, without what train mode changes in torch's own layers.

        Two traces with one signature run the same operators on the same values.
        """
        numbers: dict[Value, int] = {}
        fresh = itertools.count()

        def visit(item: Any) -> Any:
            if isinstance(item, Value):
                if item not in numbers:
                    numbers[item] = next(fresh)
                return (numbers[item], item.shape, item.dtype)
            if isinstance(item, (list, tuple)):
                return tuple(visit(child) for child in item)
            return repr(item)

        result: list[Any] = []
        named = {**self.parameters, **self.buffers, **self.inputs}
        for value, name in named.items():
            result.append((name, visit(value)))
        for op in self.ops:
            if op.name == "aten.add_.Tensor" and self.buffers.get(op.args[0], "").endswith(
                "num_batches_tracked"
            ):
                continue  # batch norm counts its batches in train mode
            if op.name.startswith(_LAYOUT):
                numbers[op.outputs[0]] = visit(op.args[0])[0]
                continue
            tensors = (
                tuple(op.inputs()) if op.name.startswith(_MODAL) else (op.args, *op.kwargs.items())
            )
            result.append((op.name, op.module, visit(tensors), visit(op.outputs)))
        return [*result, visit(self.outputs), visit(list(self.left)), tuple(self.left.values())]

    @cached_property
    def consumers(self) -> dict[Value, list[Op]]:
        """Which operators take each value."""
        result: dict[Value, list[Op]] = {}
        for op in self.ops:
            for value in op.inputs():
                result.setdefault(value, []).append(op)
        return result


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
    try:
        # torch.export prints the graph it has so far when it gives up
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


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
        result = _flatten(program, model, left)
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
            found = output_tensors(model(*args, **kwargs))
    except Exception as error:
        raise InputError(
            "the model's own forward pass fails on the example inputs: "
            f"{type(error).__name__}: {_first_line(error)}. Pass inputs of the shape, type and device that "
            "the model is trained on."
        ) from error
    if any(isinstance(t, FakeTensor) for t in found):
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


def _values(item: Any) -> Iterator[Value]:
    if isinstance(item, Value):
        yield item
    elif isinstance(item, (list, tuple)):
        for child in item:
            yield from _values(child)
    elif isinstance(item, dict):
        for child in item.values():
            yield from _values(child)


def _flatten(program: torch.export.ExportedProgram, model: nn.Module, left: Sequence[str]) -> Trace:
    gm, signature = program.graph_module, program.graph_signature
    result = Trace()
    first_names = {id(p): name for name, p in model.named_parameters()}
    first_names |= {id(b): name for name, b in model.named_buffers()}
    everything: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    everything |= dict(model.named_buffers(remove_duplicate=False))
    kinds = {spec.arg.name: spec for spec in signature.input_specs}
    env: dict[torch.fx.Node, Any] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            value = env[node] = _as_values(node.meta.get("val"))
            spec = kinds[node.name]
            target = (spec.target or "").removeprefix("model.")
            if not isinstance(value, Value):
                continue
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                name = first_names[id(everything[target])]
                table = result.parameters if spec.kind is InputKind.PARAMETER else result.buffers
                table[value] = name
            elif spec.kind is InputKind.USER_INPUT:
                result.inputs[value] = f"model input '{node.name.removeprefix('kwargs_')}'"
            else:
                result.inputs[value] = f"constant '{target}'"
                constant = program.constants.get(spec.target or "")
                if isinstance(constant, torch.Tensor):
                    result.constants[value] = constant
    outputs = _run(gm, env, result)
    mutated = len(list(signature.buffers_to_mutate)) + len(list(signature.user_inputs_to_mutate))
    result.outputs.extend(list(_values(outputs))[mutated:])
    result.ops[:], result.outputs[:] = follow_writes(result.ops, result.outputs)
    for name in reversed(left):
        result.left[result.outputs.pop()] = name
    _drop_unused(result)
    return result


def _drop_unused(result: Trace) -> None:
    """Drops operators whose results nobody uses (shapes taken from a slice, say); they restrict nothing.

    What is written into a buffer or an input outlives the pass and is kept.
    """
    lasting = {*result.parameters, *result.buffers, *result.inputs}
    memory = {value.storage for value in lasting}
    needed = {*result.outputs, *result.left}
    kept: list[Op] = []
    for op in reversed(result.ops):
        lasts = any(value.storage in memory for value in op.writes)
        if lasts or any(value in needed for value in op.outputs):
            kept.append(op)
            needed.update(op.inputs())
    result.ops[:] = reversed(kept)


def _as_values(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        try:
            storage = item.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):  # inside vmap, or sparse
            storage = -id(item)
        return Value(tuple(stand_in(n) for n in item.shape), item.dtype, storage)
    if isinstance(item, torch.SymInt):
        return stand_in(item)
    if isinstance(item, (list, tuple)):
        return [_as_values(child) for child in item]
    return item


# Higher-order operators that do no more than run their sub-graph once.
_WRAPPERS = {
    "wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap", "wrap_activation_checkpoint",
    "tag_activation_checkpoint", "invoke_subgraph", "strict_mode",
}  # fmt: skip
# In place, but only the shape changes: a view of the same content.
_RESHAPED = tuple(
    f"aten.{name}_." for name in
    ("unsqueeze", "squeeze", "t", "transpose", "swapaxes", "swapdims", "detach", "requires_grad")
)  # fmt: skip


def _run(
    gm: torch.fx.GraphModule, env: dict[torch.fx.Node, Any], result: Trace, place: str = ""
) -> Any:
    """Walks a graph with its placeholders already in `env`; returns the values of its outputs.

    `place` is the module that a sub-graph without names of its own belongs to.
    """

    def look_up(node: torch.fx.Node) -> Any:
        return env[node]

    for node in gm.graph.nodes:
        if node.op == "placeholder":
            continue
        args = torch.fx.map_arg(node.args, look_up)
        kwargs = torch.fx.map_arg(node.kwargs, look_up)
        if node.op == "output":
            return args
        if node.op == "get_attr":
            attribute: Any = gm
            for part in str(node.target).split("."):
                attribute = getattr(attribute, part)
            env[node] = attribute
            if isinstance(attribute, torch.Tensor):
                env[node] = _as_values(attribute)
                result.inputs[env[node]] = f"constant '{node.target}'"
                result.constants[env[node]] = attribute
        elif node.target is operator.getitem and not isinstance(args[0], Value):
            env[node] = args[0][args[1]]
        else:
            stack = node.meta.get("nn_module_stack") or {}
            call, module = BRANCH, place
            if stack:
                call = list(stack)[-1]
                module = str(stack[call][0]).removeprefix("model").removeprefix(".")
            elif owners := {result.parameters[v] for v in _values(args) if v in result.parameters}:
                module = min(owners).rpartition(".")[0]  # branches do not say whose code it is
                call = f"{BRANCH} {module}"
            inlined = _inline(node, args, kwargs, result, module, call)
            if inlined is None:
                env[node] = _aliased(node.target, args, _as_values(node.meta.get("val")))
                made = _operator(node.target, args, kwargs, env[node], module, call)
                if (
                    made.outputs or made.writes
                ):  # else numbers computed from sizes, assertions on them
                    result.ops.append(replace(made, site=node.meta.get(META)))
            else:
                env[node] = inlined
    return None


def _inline(
    node: torch.fx.Node, args: tuple[Any, ...], kwargs: Any, result: Trace, module: str, call: str
) -> Any:
    """The results of a higher-order operator whose sub-graphs are run here, or None if it stays one operator."""
    graphs = [a for a in args if isinstance(a, torch.fx.GraphModule)]
    name = str(node.target)
    known = (*_WRAPPERS, "cond", "map_impl")
    if name not in known or kwargs or len(graphs) != (2 if name == "cond" else 1):
        return None
    given = [a for a in args[list(args).index(graphs[-1]) + 1 :] if not isinstance(a, str)]
    if name == "cond":
        given = list(given[0])

    def emit(operator: str, args: tuple[Any, ...], out: Value) -> Value:
        result.ops.append(Op(operator, args, {}, (out,), module, call))
        return out

    count = 0
    if name == "map_impl":  # what vmap does: one slice of each, and the results side by side
        count = given[0][0].shape[0]
        sliced = [Value(x.shape[1:], x.dtype, -id(x)) for x in given[0]]
        for x, part in zip(given[0], sliced, strict=True):
            emit("higher_order._add_batch_dim", (x, 0, 1), part)
        given = [*sliced, *given[1]]
    found = []
    for graph in graphs:
        holders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        if len(holders) != len(given):
            return None
        found.append(_run(graph, dict(zip(holders, given, strict=True)), result, module))
    if name == "cond":
        outputs = [_as_values(v) for v in node.meta["val"]]
        branches = [list(_values(values)) for values in found]
        if len({len(outputs), *map(len, branches)}) > 1 or not isinstance(args[0], Value):
            return None  # something else than tensors is returned, or asked about
        for out, a, b in zip(outputs, *branches, strict=True):
            emit("growthring.either", (args[0], a, b), out)
        return outputs
    if name == "map_impl":
        whole = [_as_values(v) for v in node.meta["val"]]
        parts = zip(_values(found[0]), whole, strict=True)
        return [emit("higher_order._remove_batch_dim", (a, 1, count, 0), out) for a, out in parts]
    (values,) = found
    if isinstance(values, tuple) and len(values) == 1 and isinstance(values[0], tuple):
        values = list(values[0])
    return values


def _aliased(target: Any, args: tuple[Any, ...], returned: Any) -> Any:
    """What an in-place operator returns lies in the memory that it wrote to, whatever the trace says."""
    schema: Any = getattr(target, "_schema", None)
    alias = schema.returns[0].alias_info if schema is not None and schema.returns else None
    if alias is None or not alias.is_write or not isinstance(returned, Value):
        return returned
    for argument, given in zip(schema.arguments, args, strict=False):
        own = argument.alias_info
        if own is not None and own.before_set & alias.before_set and isinstance(given, Value):
            return replace(returned, storage=given.storage)
    return returned


def _operator(
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    returned: Any,
    module: str,
    call: str,
) -> Op:
    """One operator; sub-graphs among its arguments are replaced by the numbers they compute with."""
    name = str(target)
    if not isinstance(target, torch._ops.OpOverload):
        name = f"higher_order.{getattr(target, '__name__', name)}.default"
    schema = None if name.startswith(_RESHAPED) else getattr(target, "_schema", None)
    writes: list[Value] = []
    for i, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes += _values(args[i] if i < len(args) else kwargs.get(argument.name))
            if argument.is_out:  # its old content plays no part
                kwargs = {k: v for k, v in kwargs.items() if k != argument.name}
    if any(value.storage < 0 for value in writes):
        raise TraceError(
            f"{name} in '{module or '(model)'}' writes into a tensor inside vmap (or another transform), "
            "and what else lies in that memory is not known. Write `x = x + y` instead of `x += y` there."
        )
    outputs = tuple(_values(returned))
    known = {value.storage for value in outputs}
    outputs += tuple(Value(w.shape, w.dtype, w.storage) for w in writes if w.storage not in known)
    if name.startswith("aten.einsum"):  # the order of its products, which may change with sizes
        kwargs = {k: v for k, v in kwargs.items() if k != "path"}
    args = tuple(_numbers_of(a) if isinstance(a, torch.fx.GraphModule) else a for a in args)
    return Op(name, args, kwargs, outputs, module, call, tuple(writes))


def _numbers_of(graph: torch.fx.GraphModule) -> list[Any]:
    """The operators of a sub-graph with their plain arguments: what may change with a width."""
    found: list[Any] = []
    for node in graph.graph.nodes:
        found.append(str(node.target) if node.op == "call_function" else node.op)
        plain, _ = torch.utils._pytree.tree_flatten((node.args, node.kwargs))
        found += [a for a in plain if isinstance(a, (int, float))]
    for inner in graph.children():
        if isinstance(inner, torch.fx.GraphModule):
            found += _numbers_of(inner)
    return found
