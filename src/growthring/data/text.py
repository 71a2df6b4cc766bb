"""Text as bytes: a corpus that every machine has, or a file of the user's, in windows for next-byte prediction."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from growthring.data.batch import Batch
from growthring.data.errors import DataError
from growthring.data.stream import BatchStream, Prepare
from growthring.errors import InputError

TEXTS = ("python", "text")
_HELD_OUT = 0.1  # the share at the end of a text that is for testing
_LEAST = 1000  # bytes


@dataclass(frozen=True)
class TextData:
    """A text.

    Attributes:
        name: in messages.
        values: uint8 (n,), its bytes.
    """

    name: str
    values: Tensor

    def __len__(self) -> int:
        return len(self.values)


def load_text(name: str, root: str | Path | None = None) -> tuple[TextData, TextData]:
    """A text for training and one for testing.

    Args:
        name: "python" for the sources of Python's standard library, which differ from one version of Python to the
            next; "text" for a file of your own, whose last tenth is for testing.
        root: the file.

    >>> train, test = load_text("python")
    >>> len(train) > len(test) > 100_000
    True
    """
    if name == "python":
        content = _python_sources()
    elif root is None:
        raise InputError("'text' is a file of your own: pass its path (--data FILE).")
    else:
        content = _read(Path(root).expanduser())
    values = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())
    split = len(values) - int(_HELD_OUT * len(values))
    return TextData(name, values[:split]), TextData(name, values[split:])


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"the text '{path}' cannot be read: {error.strerror or error}.") from error
    if len(content) < _LEAST:
        raise DataError(f"the text '{path}' has {len(content)} bytes; {_LEAST:,} are needed.")
    return content


def _python_sources() -> bytes:
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))
    content = b"\n".join(path.read_bytes() for path in files)
    if len(content) < _LEAST:
        raise DataError(
            f"Python's standard library has no sources in '{folder}' on this machine; pass a text of your own "
            "(--set data=text --data FILE)."
        )
    return content


class TextBatches(BatchStream):
    """Epochs of (bytes int64 (b, context), the bytes that follow each (b, context)).

    With a generator, an epoch takes `per_epoch` windows from all over the text, in random order and each moved by
    less than its length at random; the next epoch takes others, until all were taken. Without, in order.

    >>> text = TextData("abc", torch.arange(100, dtype=torch.uint8))
    >>> inputs, targets = next(iter(TextBatches(text, 2, 8, None)))
    >>> inputs[1].tolist(), targets[1].tolist()
    ([8, 9, 10, 11, 12, 13, 14, 15], [9, 10, 11, 12, 13, 14, 15, 16])

    Args:
        text: the bytes.
        batch_size: windows per batch.
        context: bytes in a window.
        generator: as for `BatchStream`.
        per_epoch: windows of an epoch; all by default.
        device: where the batches go.
    """

    def __init__(
        self,
        text: TextData,
        batch_size: int,
        context: int,
        generator: torch.Generator | None,
        *,
        per_epoch: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self._windows = (len(text) - 1) // context
        if self._windows < 1:
            raise InputError(
                f"the text '{text.name}' is shorter than a window of {context} bytes and the one after it: it has "
                f"{len(text)}. Take a longer text (a tenth of it is for testing), or shorter windows (input_shape)."
            )
        super().__init__(
            min(per_epoch or self._windows, self._windows), batch_size, generator, False
        )
        self.text, self.context = text, context
        self.device = torch.device("cpu" if device is None else device)

    def select(self, indices: Tensor | None) -> None:
        """Refused, but for all: they are no examples that stand for themselves."""
        if indices is not None:
            raise InputError(f"{type(self).__name__}: its examples cannot be chosen one by one.")
        super().select(None)

    def _preparing(self) -> AbstractContextManager[Prepare]:
        return nullcontext(self._prepare)

    def _prepare(self, indices: Tensor) -> Callable[[], Batch]:
        stride = self._windows // self._num_examples  # so that each epoch is from all over the text
        starts = (indices * stride + self._epoch % stride) * self.context
        if self._generator is not None:
            moved = torch.randint(self.context, starts.shape, generator=self._generator)
            starts = (starts + moved).clamp_max(len(self.text) - self.context - 1)

        def finish() -> Batch:
            found = self.text.values[starts[:, None] + torch.arange(self.context + 1)]
            found = found.to(self.device).long()
            return found[:, :-1], found[:, 1:]

        return finish
