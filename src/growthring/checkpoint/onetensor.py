"""Any nested state as one tensor of bytes, for formats that know nothing but tensors, such as torch's own."""

from __future__ import annotations

import importlib
import json
import os
import warnings
import zlib
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from growthring.checkpoint.decode import decode
from growthring.checkpoint.encode import encode
from growthring.checkpoint.errors import CheckpointError
from growthring.checkpoint.jsontext import unique

_MARK = b"growthring\x00\x01"  # the last byte is the version
_SUM = 4  # bytes of the CRC-32 that follows
_LENGTH = 8  # and of the tree's length


def to_tensor(state: Any) -> Tensor:
    """A state as bytes (uint8): a mark, a checksum, a tree in JSON, and tensors as safetensors has them.

    >>> from_tensor(to_tensor({"stage": 2, "start": torch.ones(2)}))
    {'stage': 2, 'start': tensor([1., 1.])}
    """
    tensors, tree = encode(state)
    # tied ones and views are refused by the library; each gets memory of its own
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(tree).encode()
    body = len(text).to_bytes(_LENGTH, "little") + text + save(plain)
    blob = _MARK + zlib.crc32(body).to_bytes(_SUM, "little") + body
    return torch.from_numpy(np.frombuffer(bytearray(blob), dtype=np.uint8))


def from_tensor(tensor: Tensor, where: str = "the tensor") -> Any:
    """The state that `to_tensor` made one tensor of. Nothing in it is code.

    Args:
        tensor: of bytes.
        where: it is from, for messages.

    Raises:
        CheckpointError: it is not one of `to_tensor`, of a later version, or damaged.
    """
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise CheckpointError(
            f"{where} is a {tensor.dtype} of shape {tuple(tensor.shape)}: {_FOREIGN}"
        )
    blob = tensor.detach().cpu().contiguous().numpy().tobytes()
    if blob[: len(_MARK) - 1] != _MARK[:-1]:
        raise CheckpointError(f"{where} does not begin as it should: {_FOREIGN}")
    if blob[len(_MARK) - 1] != _MARK[-1]:
        raise CheckpointError(
            f"{where} is of version {blob[len(_MARK) - 1]} of the format, this growthring reads {_MARK[-1]}. "
            "Update growthring."
        )
    start = len(_MARK) + _SUM
    body = blob[start:]
    if zlib.crc32(body) != int.from_bytes(blob[len(_MARK) : start], "little"):
        raise CheckpointError(
            f"{where} is truncated or damaged: its checksum is another one. Take the checkpoint before."
        )
    length = int.from_bytes(body[:_LENGTH], "little")
    text, rest = body[_LENGTH : _LENGTH + length], body[_LENGTH + length :]
    try:
        return decode(load(rest), json.loads(text, object_pairs_hook=unique))
    except (SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} holds no state ({error}): {_FOREIGN}") from None


_FOREIGN = "it was not made by Grower.state_tensor()."


def read_growth(
    checkpoint: str | os.PathLike[str] | None = None, key: str = "growth", *, storage: Any = None
) -> Any:
    """What a checkpoint of `torch.distributed.checkpoint` remembers of growth, for `Grower.load_state_dict`.

    It is read before anything else, as it says what shapes everything else has. Each process reads it on its
    own, as many as there are, and without a process group too.

    Args:
        checkpoint: its folder, or where else `dcp.load(checkpoint_id=)` would look for it.
        key: under which `Grower.state_tensor()` was saved.
        storage: a `StorageReader`, where one is needed.

    Raises:
        CheckpointError: there is no such checkpoint, nothing of growth in it, or it is damaged.

    >>> import tempfile, torch.distributed.checkpoint as dcp
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = dcp.save({"growth": to_tensor({"stage": 1})}, checkpoint_id=folder.name, no_dist=True)
    >>> read_growth(folder.name)
    {'stage': 1}
    """
    dcp: Any = importlib.import_module(
        "torch.distributed.checkpoint"
    )  # few need it, and it is slow
    where = f"the checkpoint '{checkpoint}'" if checkpoint is not None else "the checkpoint"
    try:
        reader = storage or dcp.FileSystemReader(os.fspath(checkpoint or ""))
        known = reader.read_metadata().state_dict_metadata
    except Exception as error:  # torch unpickles what it finds there
        raise CheckpointError(
            f"{where} cannot be read ({type(error).__name__}: {error}). Pass the folder that dcp.save was given."
        ) from error
    size = getattr(known.get(key), "size", None)
    if size is None or len(size) != 1:
        raise CheckpointError(
            f"{where} has no growth under '{key}'. Save it beside the model: "
            f'dcp.save({{..., "{key}": grower.state_tensor()}}, ...).'
        )
    tensor = torch.empty(size, dtype=torch.uint8)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", ".*assuming the intent is to load in a single process"
            )
            dcp.load({key: tensor}, storage_reader=reader, no_dist=True)
    except dcp.CheckpointException as error:  # which is no Exception
        ((reason, _),) = error.failures.values()
        raise CheckpointError(
            f"the growth in {where} cannot be read ({type(reason).__name__}: {reason}): it is truncated, or a "
            "file is missing. Take the checkpoint before."
        ) from error
    return from_tensor(tensor, f"'{key}' in {where}")
