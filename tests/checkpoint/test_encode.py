"""encode and decode: any data comes back as it was."""

import json
import math
import random
import struct
from collections import Counter, OrderedDict, defaultdict

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from growthring.checkpoint import decode, encode
from growthring.checkpoint.tensorfile import read_tensors, write_tensors
from tests.checkpoint.same import assert_same


def round_trip(state, tmp_path=None):
    tensors, tree = encode(state)
    text = json.dumps(tree, allow_nan=False)
    if tmp_path is not None:
        path = tmp_path / "t.safetensors"
        path.unlink(missing_ok=True)
        write_tensors(path, tensors)
        tensors = read_tensors(path)
    return decode(tensors, json.loads(text))


DTYPES = sorted(
    {d for d in vars(torch).values() if isinstance(d, torch.dtype) and "q" not in str(d)}
    - {getattr(torch, f"{u}int{n}", None) for n in range(1, 8) for u in ("", "u")}
    - {getattr(torch, f"bits{n}", None) for n in ("8", "16", "1x8", "2x4", "4x2")},
    key=str,
)


def random_tensor(dtype, shape, generator=None):
    num_bytes = math.prod(shape) * dtype.itemsize
    if dtype == torch.bool:
        return torch.randint(2, shape, generator=generator).bool()
    data = torch.randint(256, (num_bytes,), dtype=torch.uint8, generator=generator)
    return data.view(dtype).reshape(shape)


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 1, 4)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype, shape, generator, tmp_path):
    state = {"t": random_tensor(dtype, shape, generator)}
    assert_same(state, round_trip(state, tmp_path))


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=True)
    | st.text()
    | st.text(st.characters(categories=("Cs", "Lu")), max_size=4)
    | st.binary(max_size=20)
    | st.sampled_from([torch.float32, torch.bfloat16, torch.device("cpu"), torch.device("cuda", 1)])
    | st.lists(st.integers(0, 9), max_size=3).map(torch.Size)
)
tensors = st.builds(
    random_tensor,
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)
arrays = hnp.arrays(
    hnp.scalar_dtypes(),
    hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3),
)
numpy_scalars = (
    hnp.scalar_dtypes().flatmap(hnp.from_dtype).filter(lambda x: isinstance(x, np.generic))
)
keys = st.recursive(
    st.text(max_size=5) | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
states = st.recursive(
    scalars | tensors | arrays | numpy_scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
        | st.sets(keys, max_size=4)
        | st.frozensets(keys, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=100)
@given(state=states)
@pytest.mark.slow
def test_any_nesting_comes_back(state):
    assert_same(state, round_trip(state))


@settings(max_examples=60)
@given(state=states)
def test_any_nesting_comes_back_from_a_file(state, tmp_path_factory):
    assert_same(state, round_trip(state, tmp_path_factory.mktemp("t", numbered=True)))


def test_floats_to_the_bit():
    payload = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    state = [0.1, -0.0, 5e-324, 1e308, math.inf, -math.inf, math.nan, payload, 1 / 3]
    assert_same(state, round_trip(state))


def test_numbers_with_thousands_of_digits():
    state = [10**6000, -(10**6000), 2**63, -(2**63), 2**63 - 1]
    assert round_trip(state) == state


def test_kinds_of_dict():
    plain = round_trip(defaultdict(list, {"a": [1]}))
    assert type(plain) is dict and plain == {"a": [1]}
    milestones = Counter({30: 1, 80: 2})
    assert_same(milestones, round_trip(milestones))
    order = {"z": 1, "a": 2, 3: 4, (1, "x", True): 5, False: 6}
    assert_same(order, round_trip(order))


def test_metadata_of_a_modules_state_dict():
    state = torch.nn.BatchNorm1d(3).state_dict()
    again = round_trip(state)
    assert_same(state, again)
    assert again._metadata[""]["version"] == 2


def test_a_parameter_becomes_a_plain_tensor():
    again = round_trip(torch.nn.Parameter(torch.ones(2)))
    assert type(again) is torch.Tensor and not again.requires_grad


def test_tied_tensors_are_separate_and_equal(tmp_path):
    weight = torch.randn(4, 3)
    state = {"a": weight, "b": weight, "part": weight[1:], "turned": weight.t()}
    again = round_trip(state, tmp_path)
    assert_same(state, again)
    assert len({t.untyped_storage().data_ptr() for t in again.values()}) == 4


LAYOUTS = {
    "channels-last": torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels-last 1x1": torch.arange(6.0)
    .reshape(2, 3, 1, 1)
    .to(memory_format=torch.channels_last),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "transposed complex128": torch.arange(6).reshape(2, 3).to(torch.complex128).t(),
    "odd stride of one": torch.arange(6.0).as_strided((1, 6), (17, 1)),
    "empty transposed": torch.empty(0, 3).t(),
}


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS)
def test_dense_tensors_keep_their_strides_without_a_copy(tensor, tmp_path):
    again = round_trip(tensor, tmp_path)
    assert_same(tensor, again)
    assert again.stride() == tensor.stride()
    (stored,) = encode(tensor)[0].values()
    assert stored.data_ptr() == tensor.data_ptr()


GAPS = {
    "columns": torch.arange(12.0).reshape(3, 4)[:, ::2],
    "columns complex128": torch.arange(12).reshape(3, 4).to(torch.complex128)[:, 1:3],
    "expanded": torch.arange(3.0).expand(4, 3),
    "conjugate": torch.tensor([1 + 2j, 3j]).conj(),
    "negative view": torch.tensor([1 + 2j, 3j]).conj().imag,
    "requires grad": torch.ones(2, requires_grad=True) * 2,
}


@pytest.mark.parametrize("tensor", GAPS.values(), ids=GAPS)
def test_other_views_become_contiguous(tensor, tmp_path):
    again = round_trip(tensor, tmp_path)
    assert_same(tensor, again)
    assert again.is_contiguous() and not again.requires_grad


ARRAYS = {
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "negative stride": np.arange(6)[::-1],
    "read only": np.broadcast_to(np.float32(3), (2, 2)),
    "big endian": np.arange(3, dtype=">f8"),
    "strings": np.array([["ab", "c"]]),
    "dates": np.array(["2024-01-01"], dtype="datetime64[D]"),
    "float16": np.arange(3, dtype=np.float16),
    "uint64": np.array([2**64 - 1], dtype=np.uint64),
    "zero axes": np.array(3.5),
    "empty string": np.str_(""),
    "scalar": np.float64(0.1),
    "bool scalar": np.bool_(True),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_numpy(array, tmp_path):
    assert_same(array, round_trip([array], tmp_path)[0])


def test_states_of_generators():
    generator = np.random.default_rng(3)
    state = {
        "torch": torch.Generator().manual_seed(5).get_state(),
        "random": random.Random(3).getstate(),
        "numpy": generator.bit_generator.state,
        "legacy": np.random.RandomState(3).get_state(),
    }
    again = round_trip(state)
    assert_same(state, again)
    other = random.Random()
    other.setstate(again["random"])
    assert other.random() == random.Random(3).random()
    fresh = np.random.default_rng()
    fresh.bit_generator.state = again["numpy"]
    assert fresh.random() == generator.random()
    torch.Generator().set_state(again["torch"])


def test_names_of_tensors_are_paths_and_never_clash(tmp_path):
    one = [torch.tensor(float(i)) for i in range(7)]
    state = {
        "a": {"b": one[0]},
        "a.b": one[1],
        "__metadata__": one[2],
        "state": {0: {"step": one[3]}},
        "\ud800": one[4],
        "groups": [(one[5],)],
    }
    tensors, _ = encode(state)
    assert list(tensors) == [
        "a.b",
        "a.b~2",
        "__metadata__~2",
        "state[0].step",
        "\\ud800",
        "groups[0][0]",
    ]
    assert_same(state, round_trip(state, tmp_path))


def test_the_order_of_a_set_is_the_same_in_every_process():
    assert encode({"b", "a", "c"})[1] == {"set": ["a", "b", "c"]}
