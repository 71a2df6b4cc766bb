"""What growth has to remember, as one safetensors file in the checkpoint folder of somebody else's trainer."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from growthring.checkpoint import (
    CheckpointError,
    decode,
    encode,
    load_weights,
    save_weights,
    weights_metadata,
)

FILE = "growthring.safetensors"
_TREE = "growth"


def write_growth(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Writes a `Grower.state_dict()`, whole or not at all.

    The file's header says in words which norms are fading in: beside such weights this file is needed.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_growth(Path(folder.name) / FILE, {"stage": 1, "fades": []})
    >>> read_growth(Path(folder.name) / FILE)
    {'stage': 1, 'fades': []}
    """
    tensors, tree = encode(dict(state))
    fading = sorted({str(fade["module"]) for fade in state["fades"]})
    save_weights(path, tensors, {_TREE: json.dumps(tree), "fading": ", ".join(fading)})


def read_growth(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads what `write_growth` wrote.

    Raises:
        CheckpointError: there is no such file, or it is not whole.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(
            f"'{path.parent}' lacks '{path.name}': it was saved without the growth, or the process ended while it "
            "was being saved, so the widths that it holds are not known. Take an older checkpoint."
        )
    try:
        tree = json.loads(weights_metadata(path)[_TREE])
    except (LookupError, RecursionError, ValueError) as error:
        raise CheckpointError(
            f"'{path}' holds no growth ({type(error).__name__}: {error})."
        ) from None
    state = decode(load_weights(path), tree)
    if not isinstance(state, dict):
        raise CheckpointError(f"'{path}' holds a {type(state).__name__}, not a growth.")
    return state
