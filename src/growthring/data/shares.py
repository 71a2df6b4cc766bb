"""Share: the part of each batch that one of several processes takes, so that all of them have it once."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.utils import _pytree as pytree

from growthring.data.batch import Batch, examples_in


@dataclass(frozen=True)
class Share:
    """The part of one process; the first ones have one example more where a batch cannot be divided.

    >>> import torch
    >>> batch = (torch.arange(5), torch.arange(5))
    >>> [Share(rank, 3).cut(batch)[0].tolist() for rank in range(3)]
    [[0, 1], [2, 3], [4]]

    Args:
        rank: of the process.
        size: how many processes there are.
    """

    rank: int
    size: int

    def of(self, count: int) -> slice:
        """Its part of so many examples; of a batch smaller than the number of processes it may be none.

        >>> [Share(rank, 3).of(2) for rank in range(3)]
        [slice(0, 1, None), slice(1, 2, None), slice(2, 2, None)]
        """
        whole, rest = divmod(count, self.size)
        start = self.rank * whole + min(self.rank, rest)
        return slice(start, start + whole + (self.rank < rest))

    def cut(self, batch: Batch) -> Batch:
        """Its part of a batch; tensors without an entry for each example stay whole."""
        size = examples_in(batch)
        kept = self.of(size)

        def cut(tensor: Tensor) -> Tensor:
            return tensor[kept] if tensor.dim() and len(tensor) == size else tensor

        result: Batch = pytree.tree_map_only(Tensor, cut, batch)
        return result
