"""Processes: those that train one model together under `torchrun`, each on its slice of every batch.

One process alone is the usual case; then nothing is sent, and every method gives what it was given.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, distributed as dist, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from growthring.data.batch import Batch, Stream, examples_in
from growthring.data.shares import Share
from growthring.data.stream import BatchStream
from growthring.distributed.digests import digest_of
from growthring.distributed.ranks import Ranks
from growthring.errors import InputError, RanksError
from growthring.train.draws import Draws
from growthring.train.state import Totals

_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> tuple[int, int]:
    """The number of this process, and of how many, as torchrun tells them; (0, 1) without.

    >>> launched()
    (0, 1)
    """
    if not all(name in os.environ for name in _LAUNCHED):
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def joined(device: str) -> Iterator[None]:
    """Inside, the processes that torchrun has started are a group; nothing happens in one that it has not.

    Args:
        device: where they train: "cpu", or "cuda" for a GPU each.
    """
    if launched()[1] == 1 or dist.is_initialized():
        yield
        return
    on_cuda = device.startswith("cuda")
    if on_cuda and torch.cuda.is_available():
        torch.cuda.set_device(local_device(device))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo")
    try:
        yield
        dist.barrier()  # so that nobody leaves while another still reads what it has sent
    except BaseException:
        # torchrun ends all as soon as one has failed, but this one has yet to say why
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    finally:
        dist.destroy_process_group()


def local_device(device: str | torch.device) -> str | torch.device:
    """The device of this process: of "cuda", the GPU that torchrun means by its local rank.

    >>> local_device("cpu")
    'cpu'
    """
    if str(device) == "cuda" and "LOCAL_RANK" in os.environ:
        return f"cuda:{os.environ['LOCAL_RANK']}"
    return device


class Processes(Ranks):
    """The processes of torch's process group, or this one alone.

    Args:
        device: where this one trains.

    Attributes:
        draws: random numbers of this process.

    Raises:
        InputError: there are several, which cannot train together.

    >>> processes = Processes(torch.device("cpu"))
    >>> processes.size, processes.any_of(True, False)
    (1, (True, False))
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(_host_group(device))
        self.draws = Draws(self, device)
        self._share = Share(self.rank, self.size)
        self._pooled = 0.0

    @property
    def is_first(self) -> bool:
        """Whether it is the one that writes and speaks."""
        return self.rank == 0

    @property
    def words(self) -> str:
        """How many, for the end of a sentence; nothing for one."""
        return "" if self.is_alone else f", {self.size} processes"

    # Data.

    def slices(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Of each batch what this process takes; empty where there are fewer examples than processes."""
        if self.is_alone:
            return batches
        if isinstance(batches, BatchStream):
            return batches.slices(self._share)
        return (self._share.cut(batch) for batch in batches)

    def in_step(self, stream: Stream) -> Iterable[Batch]:
        """The same, one after the other on all processes: they fail together, and their batches are the same."""
        return stream if self.is_alone else self._in_step(stream)

    def _in_step(self, stream: Stream) -> Iterator[Batch]:
        batches = iter(stream.slices(self._share) if isinstance(stream, BatchStream) else stream)
        while True:
            with self.together():
                batch = next(batches, None)
            if not isinstance(stream, BatchStream):  # of which the order is known to be the same
                self._check_same(batch)
                batch = None if batch is None else self._share.cut(batch)
            if batch is None:
                return
            yield batch

    def _check_same(self, batch: Batch | None) -> None:
        targets = [t for t in pytree.tree_leaves(batch and batch[1]) if isinstance(t, Tensor)]
        with self._connected():
            is_same = self._agree([batch is None, *(int(digest_of(t)) for t in targets)])
        if not is_same:
            raise RanksError(
                "the training batches of the processes differ: each process has to get all batches in the same "
                "order, and takes its slice of them. Let the loader's order, and what it draws for targets, follow "
                "from torch's, Python's or numpy's generators or from a seed that all processes share."
            )

    # The model.

    def wrapped(self, model: nn.Module) -> nn.Module:
        """What the model is trained through: it averages gradients over the processes."""
        return model if self.is_alone else DistributedDataParallel(model)

    def scaled(self, loss: Tensor, sums: Tensor, total: Tensor) -> Tensor:
        """A mean loss, such that the mean of the processes' gradients is the gradient of the whole batch.

        Of a mean over n of N places, that is n·R/N of it for R processes, which average.

        Args:
            loss: of this process's slice.
            sums: of the slice, (…, …, n).
            total: of the batch, (…, …, N).
        """
        return loss if self.is_alone else loss * (self.size * sums[2] / total[2]).to(loss)

    def level(self, model: nn.Module) -> None:
        """Gives a model the first process's statistics, as those of norms follow from a process's own slices."""
        if not self.is_alone:
            buffers = dict(model.named_buffers())
            for name, values in self.broadcast(buffers).items():
                buffers[name].copy_(values)

    def notes_on(self, model: nn.Module) -> tuple[str, ...]:
        """What is not as in one process, in sentences."""
        if self.is_alone or not any(isinstance(m, _BatchNorm) for m in model.modules()):
            return ()
        return (
            f"BatchNorm normalises over each of the {self.size} processes' slices of a batch, not over the whole "
            "batch (docs/torchrun.md).",
        )

    # Numbers.

    def added(self, sums: Tensor, batch: Batch) -> tuple[Tensor, int]:
        """Sums of a slice, and its number of examples, over the whole batch."""
        count = examples_in(batch)
        if self.is_alone:
            return sums, count
        *total, count = self.total(torch.cat([sums, sums.new_tensor([count])])).tolist()
        return torch.tensor(total, dtype=sums.dtype), int(count)

    def total(self, values: Tensor) -> Tensor:
        """The sum over the processes."""
        if self.is_alone:
            return values
        result = values.cpu()
        with self._connected():
            dist.all_reduce(result, group=self._group)
        return result

    def any_of(self, *facts: bool) -> tuple[bool, ...]:
        """Whether each is so on any process."""
        if self.is_alone:
            return facts
        return tuple(bool(n) for n in self.total(torch.tensor(facts, dtype=torch.int64)))

    def pool(self, totals: Totals, is_new: bool = False) -> None:
        """Adds up what processors have spent since the last time.

        Args:
            totals: what it is added to.
            is_new: they are those of a checkpoint, in which it is added up.
        """
        if not self.is_alone and not is_new:
            spent = torch.tensor([totals.cpu_seconds - self._pooled], dtype=torch.float64)
            totals.cpu_seconds = self._pooled + self.total(spent).item()
        self._pooled = totals.cpu_seconds

    def gathered(self, value: Any) -> list[Any]:
        """The values of all processes, on all of them."""
        if self.is_alone:
            return [value]
        with self._connected():
            return self._gathered(value)

    # Failures.

    @contextlib.contextmanager
    def averaging(self) -> Iterator[None]:
        """A backward pass, in which processes wait for each other."""
        try:
            yield
        except RuntimeError as error:
            if self.is_alone:
                raise
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> RanksError:
        line = (str(error).strip().splitlines() or [""])[0]
        return RanksError(
            f"rank {self.rank} lost another process, or failed in the backward pass ({type(error).__name__}: "
            f"{line[:200]}). This run has ended; it goes on from its last checkpoint, with any number of processes."
        )


def _host_group(device: torch.device) -> dist.ProcessGroup | None:
    """The processes, by messages that a CPU reads, which do not wait for a GPU; None if there is one only."""
    if not (dist.is_available() and dist.is_initialized()):
        size = launched()[1]
        if size > 1:
            raise InputError(
                f"torchrun has started {size} processes, but they are no group yet: each would train on its own. "
                "Call torch.distributed.init_process_group() before the Trainer is made, and "
                "torch.distributed.destroy_process_group() at the end."
            )
        return None
    size = dist.get_world_size()
    if size == 1:
        return None
    known = str(dist.get_backend_config())
    if f"{device.type}:" not in known:
        raise InputError(
            f"the {size} processes are a group with {known}, which sends nothing from device '{device}'. Use "
            "init_process_group('gloo') on CPUs and init_process_group('cpu:gloo,cuda:nccl') on GPUs."
        )
    return dist.group.WORLD if "cpu:" in known else dist.new_group(backend="gloo")
