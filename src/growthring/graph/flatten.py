"""An exported program -> a flat list of operators: sub-graphs inlined, lists of tensors taken apart."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind

from growthring.errors import TraceError
from growthring.graph.memory import follow_writes
from growthring.graph.operators import BRANCH, Op, Trace, Value, values_in
from growthring.graph.sites import META
from growthring.graph.symbols import stand_in


def flatten(program: torch.export.ExportedProgram, model: nn.Module, left: Sequence[str]) -> Trace:
    """The operators of an exported program, in order.

    Args:
        program: of the model, wrapped so that its outputs are a list.
        model: whose tensors' names the trace uses.
        left: attributes that the last outputs were left in.
    """
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
    result.outputs.extend(list(values_in(outputs))[mutated:])
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
            elif owners := {
                result.parameters[v] for v in values_in(args) if v in result.parameters
            }:
                module = min(owners).rpartition(".")[0]  # branches do not say whose code it is
                call = f"{BRANCH} {module}"
            inlined = _inline(node, args, kwargs, result, module, call)
            if inlined is None:
                env[node] = _aliased(node.target, args, _as_values(node.meta.get("val")))
                op = _operator(node.target, args, kwargs, env[node], module, call)
                if op.outputs or op.writes:  # else numbers computed from sizes, assertions on them
                    result.ops.append(replace(op, site=node.meta.get(META)))
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
    results = []
    for graph in graphs:
        holders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        if len(holders) != len(given):
            return None
        results.append(_run(graph, dict(zip(holders, given, strict=True)), result, module))
    if name == "cond":
        outputs = [_as_values(v) for v in node.meta["val"]]
        branches = [list(values_in(values)) for values in results]
        if len({len(outputs), *map(len, branches)}) > 1 or not isinstance(args[0], Value):
            return None  # something else than tensors is returned, or asked about
        for out, a, b in zip(outputs, *branches, strict=True):
            emit("growthring.either", (args[0], a, b), out)
        return outputs
    if name == "map_impl":
        whole = [_as_values(v) for v in node.meta["val"]]
        parts = zip(values_in(results[0]), whole, strict=True)
        return [emit("higher_order._remove_batch_dim", (a, 1, count, 0), out) for a, out in parts]
    (values,) = results
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
            writes += values_in(args[i] if i < len(args) else kwargs.get(argument.name))
            if argument.is_out:  # its old content plays no part
                kwargs = {k: v for k, v in kwargs.items() if k != argument.name}
    if any(value.storage < 0 for value in writes):
        raise TraceError(
            f"{name} in '{module or '(model)'}' writes into a tensor inside vmap (or another transform), "
            "and what else lies in that memory is not known. Write `x = x + y` instead of `x += y` there."
        )
    outputs = tuple(values_in(returned))
    known = {value.storage for value in outputs}
    outputs += tuple(Value(w.shape, w.dtype, w.storage) for w in writes if w.storage not in known)
    if name.startswith("aten.einsum"):  # the order of its products, which may change with sizes
        kwargs = {k: v for k, v in kwargs.items() if k != "path"}
    args = tuple(_numbers_of(a) if isinstance(a, torch.fx.GraphModule) else a for a in args)
    return Op(name, args, kwargs, outputs, module, call, tuple(writes))


def _numbers_of(graph: torch.fx.GraphModule) -> list[Any]:
    """The operators of a sub-graph with their plain arguments: what may change with a width."""
    numbers: list[Any] = []
    for node in graph.graph.nodes:
        numbers.append(str(node.target) if node.op == "call_function" else node.op)
        plain, _ = torch.utils._pytree.tree_flatten((node.args, node.kwargs))
        numbers += [a for a in plain if isinstance(a, (int, float))]
    for inner in graph.children():
        if isinstance(inner, torch.fx.GraphModule):
            numbers += _numbers_of(inner)
    return numbers
