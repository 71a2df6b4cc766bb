"""Ranks: the processes that train one model together, and how they stay of one mind.

Every method is collective: all processes call it, in the same order. None of them leaves another waiting: what
a process does on its own between two of these calls is done inside of `together`, so that a failure of one is
the failure of all.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed as dist

from growthring.core.wording import listed
from growthring.distributed.digests import digest_of
from growthring.distributed.sending import packed, unpacked
from growthring.errors import GrowthError, RanksError

Value = TypeVar("Value")


class Ranks:
    """The processes of a group, or this one alone.

    Args:
        group: of processes; None for this process alone.
        device: on which its votes are counted: one that the group's backend knows.

    >>> ranks = Ranks()
    >>> ranks.size, ranks.from_first(lambda: "decided here")
    (1, 'decided here')
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, device: torch.device | None = None
    ) -> None:
        self._group = group
        self._device = device or torch.device("cpu")
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)

    @property
    def is_alone(self) -> bool:
        """Whether there is one process only; then nothing is ever sent."""
        return self.size == 1

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is done inside fails on all ranks if it fails on one.

        Inside of another `together`, a failure is counted once: the first count that any rank comes to is that of
        all, wherever in the code they are.

        Raises:
            RanksError: here it did not fail, elsewhere it did: where and why.
        """
        if self.is_alone:
            yield
            return
        error: BaseException | None = None
        try:
            yield
        except BaseException as caught:
            if hasattr(caught, "_is_known"):  # an inner vote has told all ranks
                raise
            error = caught
        try:
            is_done = self._least(torch.tensor([error is None], dtype=torch.int64))
            reasons = None if bool(is_done) else self._gathered(_in_words(error))
        except Exception as lost:  # a process is gone; its own error has told why, ours is the news
            raise error or self._lost(lost) from lost
        if reasons is not None:
            error = error or RanksError(self._failures(reasons))
            error._is_known = True  # type: ignore[attr-defined]
            raise error

    def meet(self) -> None:
        """Before a message that others than this class send: fails here if a rank has failed, and will not come."""
        with self.together():
            pass

    def from_first(
        self, decide: Callable[[], Value], shared: Mapping[str, Any] | None = None
    ) -> Value:
        """What the first rank decides, on every rank; the others do not decide.

        Args:
            decide: run on rank 0 only; if it fails, it fails on all.
            shared: objects that every rank has, by name: they are not sent, each rank puts in its own.
        """
        if self.is_alone:
            return decide()
        message: list[Any] = [None]
        with self.together():
            if self.rank == 0:
                message = [packed(decide(), shared or {})]
        with self._connected():
            dist.broadcast_object_list(message, group=self._group, group_src=0, device=self._device)
        result: Value = unpacked(message[0], shared or {}, self._device)
        return result

    def broadcast(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rank 0's values of these tensors, in new tensors; one message for all that are on one device."""
        if self.is_alone:
            return dict(tensors)
        devices: dict[torch.device, list[str]] = {}
        for name, tensor in tensors.items():
            devices.setdefault(tensor.device, []).append(name)
        received: dict[str, Tensor] = {}
        for names in devices.values():
            own = [tensors[name].detach().contiguous().reshape(-1) for name in names]
            flat = torch.cat([t.view(torch.uint8) for t in own])  # any type of numbers
            with self._connected():
                dist.broadcast(flat, group=self._group, group_src=0)
            pieces = flat.split([t.numel() * t.element_size() for t in own])
            for name, piece in zip(names, pieces, strict=True):
                tensor = tensors[name]
                received[name] = piece.clone().view(tensor.dtype).view(tensor.shape)
        return received

    def same(self, facts: Mapping[str, Any]) -> None:
        """Holds that plain values are equal on all ranks.

        Args:
            facts: what they are called -> strings, numbers, and containers of them.

        Raises:
            RanksError: on every rank; it says in what they differ, who, and how.
        """
        if self.is_alone:
            return
        words = {name: repr(fact) for name, fact in facts.items()}
        with self._connected():
            if self._agree(words):
                return
            everyone: list[dict[str, str]] = self._gathered(words)
        for name in dict.fromkeys(name for each in everyone for name in each):
            said = [each.get(name, "nothing") for each in everyone]
            if len(set(said)) > 1:
                others: dict[str, list[int]] = {}
                for rank, value in enumerate(said):
                    others.setdefault(value, []).append(rank)
                told = "; ".join(f"{_short(v)} on {_who(ranks)}" for v, ranks in others.items())
                raise RanksError(
                    f"the processes differ in {name}: {told}. All of them have to make the same model, plan, "
                    "optimizer and Grower, and to call step() equally often. Nothing was changed."
                )

    def same_tensors(self, tensors: Mapping[str, Tensor], when: str) -> None:
        """Holds that tensors have the same bits on all ranks.

        Raises:
            RanksError: on every rank; it names the first that differs.
        """
        if self.is_alone:
            return
        digests = [digest_of(t).to(self._device) for t in tensors.values()]
        own = dict(zip(tensors, torch.stack(digests).tolist(), strict=True)) if digests else {}
        with self._connected():
            if self._agree(own):
                return
            everyone = self._gathered(own)
        first = everyone[0]
        for rank, own in enumerate(everyone):
            differing = [n for n in {**first, **own} if own.get(n) != first.get(n)]
            if differing:
                more = f" and in {len(differing) - 1} more" if len(differing) > 1 else ""
                raise RanksError(
                    f"{when}, rank {rank} differs from rank 0 in '{differing[0]}'{more}: the processes do not "
                    "train the same model. Wrap it in DistributedDataParallel before the first step, and step "
                    "the same optimizer on every rank. The growth was not made."
                )

    # Messages.

    def _agree(self, said: Any) -> bool:
        """Whether all say the same: the least and the greatest of a number made of it, by one reduction."""
        digest = hashlib.sha256(repr(said).encode()).digest()
        code = int.from_bytes(digest[:8], "big", signed=True)
        both = torch.tensor([code, ~code])  # ~ turns the order around
        least, most = self._least(both).tolist()
        return bool(least == ~most)

    def _least(self, values: Tensor) -> Tensor:
        values = values.to(self._device)
        dist.all_reduce(values, op=dist.ReduceOp.MIN, group=self._group)
        return values

    def _gathered(self, value: Value) -> list[Value]:
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, value, group=self._group)
        return everyone

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except GrowthError:
            raise
        except Exception as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> RanksError:
        line = (str(error).strip().splitlines() or [""])[0]
        return RanksError(
            f"rank {self.rank} lost another process ({type(error).__name__}: {line[:200]}). The growth was not "
            "made; end this run and go on from the last checkpoint, with any number of processes. If none has "
            "failed, one did not come: all of them have to call grower.step() equally often."
        )

    def _failures(self, reasons: list[str | None]) -> str:
        failed = [rank for rank, reason in enumerate(reasons) if reason is not None]
        return f"{_who(failed)} failed, so nothing was changed on any: {reasons[failed[0]]}"


def _in_words(error: BaseException | None) -> str | None:
    if error is None:
        return None
    return str(error) if isinstance(error, GrowthError) else f"{type(error).__name__}: {error}"


def _who(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {listed([str(rank) for rank in ranks])}"


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:100]}… ({len(text)} letters)"
