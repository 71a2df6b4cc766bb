"""Checkpoints of a run: any nested state as safetensors + JSON, written all or nothing, without pickle."""

from growthring.checkpoint.decode import decode as decode
from growthring.checkpoint.encode import encode as encode
from growthring.checkpoint.errors import (
    CheckpointError as CheckpointError,
    RunLockedError as RunLockedError,
)
from growthring.checkpoint.files import write_text as write_text
from growthring.checkpoint.folders import list_checkpoints as list_checkpoints
from growthring.checkpoint.jsontext import read_json as read_json, write_json as write_json
from growthring.checkpoint.lines import (
    JsonLines as JsonLines,
    Mark as Mark,
    mark_of as mark_of,
    read_jsonl as read_jsonl,
)
from growthring.checkpoint.lock import RunLock as RunLock
from growthring.checkpoint.read import Checkpoint as Checkpoint, read_checkpoint as read_checkpoint
from growthring.checkpoint.weights import (
    load_weights as load_weights,
    save_weights as save_weights,
    weights_metadata as weights_metadata,
)
from growthring.checkpoint.write import (
    discard_after as discard_after,
    write_checkpoint as write_checkpoint,
)
