"""encode and decode: what is not data is refused with its path, and so are trees of others."""

from collections import namedtuple

import numpy as np
import pytest
import torch

from growthring.checkpoint import CheckpointError, decode, encode

Pair = namedtuple("Pair", "x y")


class Plain:
    pass


def cycle():
    state = {"a": []}
    state["a"].append(state)
    return state


def deep():
    state = []
    for _ in range(5000):
        state = [state]
    return state


REFUSED = {
    "lambda": (
        {"scheduler": {"lr_lambdas": [lambda step: 1.0]}},
        r"cannot save 'scheduler\.lr_lambdas\[0\]': the function '<lambda>' is not data\. Leave code out",
    ),
    "function": ([len], r"cannot save '\[0\]': the builtin_function_or_method 'len' is not data"),
    "object": ({"x": Plain()}, r"cannot save 'x': a .*Plain is not data\. Save numbers"),
    "class": ({"x": Plain}, r"'x': the type 'Plain' is not data\. Leave code out"),
    "module": ({"m": torch.nn.ReLU()}, r"'m': a torch.*ReLU is not data\. Save its state_dict\(\)"),
    "generator": (
        (torch.Generator(),),
        r"'\[0\]': a .*Generator is not data\. Save its get_state\(\)",
    ),
    "namedtuple": ({"p": Pair(1, 2)}, r"cannot save 'p': a .*Pair is not data"),
    "root": (Plain(), r"cannot save the state: a .*Plain is not data"),
    "key": (
        {"a": {torch.float32: 1}},
        r"'a\[torch.float32\]': a key is of type torch.dtype\. Keys may",
    ),
    "key in tuple": ({(1, b"x"): 1}, r"a key is of type bytes"),
    "cycle": (cycle(), r"cannot save 'a\[0\]': it contains itself"),
    "deep": (deep(), r"cannot save the state: it is nested too deep"),
    "sparse": ({"s": torch.eye(2).to_sparse()}, r"'s': it is a tensor of kind torch.sparse_coo"),
    "meta": ({"s": torch.empty(2, device="meta")}, r"'s': the tensor has no data \(meta\)"),
    "objects": ({"o": np.array([None])}, r"'o': a numpy dtype object is not plain"),
    "fields": ({"o": np.zeros(2, dtype=[("a", "f4")])}, r"'o': a numpy dtype .* is not plain"),
    "masked": ({"o": np.ma.array([1])}, r"'o': a numpy.ma.* is not a plain array"),
}


@pytest.mark.parametrize("state, message", REFUSED.values(), ids=REFUSED)
def test_what_is_not_data_is_refused_with_its_path(state, message):
    with pytest.raises(CheckpointError, match=message):
        encode(state)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantized_tensors_are_refused():
    tensor = torch._empty_affine_quantized([2], scale=1.0, zero_point=0, dtype=torch.qint8)
    with pytest.raises(CheckpointError, match=r"'s': the tensor is quantized"):
        encode({"s": tensor})


MALFORMED = {
    "tag": ({"pickle": "x"}, "unknown tag 'pickle'"),
    "tensor": ({"tensor": "gone"}, "the tensor 'gone' is missing"),
    "stride": ({"tensor": "t", "shape": [9], "stride": [9]}, "'t' is not as the tree says"),
    "dtype": ({"dtype": "nn"}, "torch has no dtype 'nn'"),
    "no dtype": ({"dtype": "float7"}, "does not describe a state"),
    "device": ({"device": "moon"}, "torch has no such device"),
    "object": ({"scalar": "|O", "bytes": "00" * 8}, "not plain"),
    "float": ({"float": "00"}, "does not describe a state"),
    "items": ({"items": [[1]]}, "does not describe a state"),
    "empty": ({}, "unknown tag"),
    "unhashable": ({"set": [[1]]}, "does not describe a state"),
}


@pytest.mark.parametrize("tree, message", MALFORMED.values(), ids=MALFORMED)
def test_a_tree_that_is_not_ours_is_refused(tree, message):
    with pytest.raises(CheckpointError, match=message):
        decode({"t": torch.zeros(3)}, tree)
