"""Writes into memory, followed through views: a list of operators that change tensors -> one on values.

`h[:, :8] = a` writes into a view; who reads `h` afterwards reads what was written. Views share
memory, so each is known by the operator that made it from its parent. A write gives the written
value a new content; on the way up every parent gets one too (`growthring.write`), and any other view
of the same memory is made anew, from its parent's new content, when it is read next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from growthring.graph.operators import Op, Value

_DROPOUTS = tuple(f"aten.{kind}dropout." for kind in ("", "feature_", "alpha_", "feature_alpha_"))


def follow_writes(ops: Sequence[Op], outputs: Sequence[Value]) -> tuple[list[Op], list[Value]]:
    """The same operators, every input replaced by what its memory holds at that point; the outputs likewise."""
    if not any(op.writes for op in ops):
        return list(ops), list(outputs)
    memory = _Memory(_shared(ops))
    for op in ops:
        memory.run(op)
    return memory.ops, [memory.now(value) for value in outputs]


def _shared(ops: Sequence[Op]) -> dict[int, int]:
    """Memory that is another's in truth: a dropout that does nothing returns its input, in a trace a copy."""
    origins: dict[int, int] = {}
    for op in ops:
        if op.name.startswith(_DROPOUTS) and not (op.args[1] and op.args[2]):
            origin = op.args[0].storage
            origins[op.outputs[0].storage] = origins.get(origin, origin)
    return origins


class _Memory:
    """What every piece of memory holds, write by write."""

    def __init__(self, shared: dict[int, int]) -> None:
        self.ops: list[Op] = []
        self._shared = shared
        self._writes: dict[int, int] = {}  # memory -> number of writes so far
        self._made: dict[Value, tuple[Op, Value]] = {}  # view -> its operator and its parent
        self._same: dict[Value, Value] = {}  # result of an in-place operator -> what it wrote to
        self._now: dict[Value, tuple[int, Value]] = {}  # value -> (as of this write, its content)

    def run(self, op: Op) -> None:
        """Emits an operator on present contents; notes the views it makes and the writes it does."""
        for value in op.inputs():
            self._enter(value)
        emitted = replace(op, args=self._present(op.args), kwargs=self._present(dict(op.kwargs)))
        written = {self._storage(value): value for value in op.writes}
        sources = {self._storage(value): value for value in reversed(list(op.inputs()))}
        for out in op.outputs:
            storage = self._storage(out)
            if storage in written:
                self._same[out] = written[storage]
            elif storage in sources:
                self._made[out] = (op, sources[storage])
        before = [(value, self._chain(value)) for value in op.writes]
        self.ops.append(emitted)
        for out in op.outputs:
            self._enter(out)
        for value, chain in before:
            content = next(out for out in op.outputs if self._same.get(out) is value)
            self._write(value, content, chain, op)

    def now(self, value: Value) -> Value:
        """What stands for a value after all writes so far."""
        value = self._original(value)
        count = self._writes.get(self._storage(value), 0)
        as_of, content = self._now.get(value, (count, value))
        if as_of == count or value not in self._made:
            return content
        op, _ = self._made[value]
        again = replace(
            op,
            args=self._present(op.args),
            kwargs=self._present(dict(op.kwargs)),
            outputs=tuple(replace(out) for out in op.outputs),
        )
        self.ops.append(again)
        for out, new in zip(op.outputs, again.outputs, strict=True):
            self._now[out] = (count, new)
        return self._now[value][1]

    def _storage(self, value: Value) -> int:
        return self._shared.get(value.storage, value.storage)

    def _enter(self, value: Value) -> None:
        if value not in self._now:
            self._now[value] = (self._writes.get(self._storage(value), 0), value)

    def _original(self, value: Value) -> Value:
        while value in self._same:
            value = self._same[value]
        return value

    def _chain(self, value: Value) -> list[tuple[Value, Value, Value]]:
        """From a value up to what owns its memory: (parent, content of the parent, content of the view)."""
        writes = []
        value = self._original(value)
        while value in self._made:
            parent = self._original(self._made[value][1])
            writes.append((parent, self.now(parent), self.now(value)))
            value = parent
        return writes

    def _write(
        self, value: Value, content: Value, chain: list[tuple[Value, Value, Value]], op: Op
    ) -> None:
        storage = self._storage(value)
        count = self._writes[storage] = self._writes.get(storage, 0) + 1
        self._now[self._original(value)] = (count, content)
        for parent, before, view in chain:
            after = replace(parent)
            self.ops.append(
                replace(
                    op,
                    name="growthring.write",
                    args=(before, view, content),
                    kwargs={},
                    outputs=(after,),
                    writes=(),
                )
            )
            self._now[parent] = (count, after)
            content = after

    def _present(self, item: Any) -> Any:
        """Arguments with every value replaced by its present content."""
        if hasattr(item, "storage"):
            return self.now(item)
        if isinstance(item, (list, tuple)):
            return type(item)(self._present(child) for child in item)
        if isinstance(item, dict):
            return {key: self._present(child) for key, child in item.items()}
        return item
