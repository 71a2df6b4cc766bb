"""Digests: every bit counts, and where it stands; how the tensor lies in memory does not."""

import pytest
import torch

from growthring.distributed.digests import digest_of

SIZES = [1, 7, 8, 9, (1 << 17) - 1, (1 << 17) + 1, 300_001]  # of 4 bytes; 2^17 of them fill a row


@pytest.mark.parametrize("size", SIZES)
def test_every_place_counts(size, generator):
    x = torch.randn(size, generator=generator)
    digest = int(digest_of(x))
    assert int(digest_of(x.clone())) == digest
    for place in {0, size // 2, size - 1}:
        other = x.clone()
        other[place] = torch.nextafter(other[place], torch.tensor(9.0))
        assert int(digest_of(other)) != digest
    if size > 1:
        assert int(digest_of(x.flip(0))) != digest
        swapped = x.clone()
        swapped[0], swapped[-1] = x[-1], x[0]
        assert int(digest_of(swapped)) != digest


def test_what_growing_in_pairs_makes_is_told_apart(generator):
    """An exclusive or of all entries would see nothing of them but signs."""
    z = torch.randn(4, 8, generator=generator)
    pairs = [torch.cat([k * z, -k * z], 1) for k in (1.0, 2.0, 3.0)]
    copies = [torch.cat([k * z, k * z]) for k in (1.0, 2.0, 3.0)]
    assert len({int(digest_of(t)) for t in [*pairs, *copies]}) == 6


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(5, dtype=torch.bfloat16),
        torch.arange(5) > 2,
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(12.0)[1:],
        torch.arange(12.0)[::2],
        torch.eye(3).to_sparse(),
        torch.tensor(3.0),
        torch.empty(0),
    ],
    ids=str,
)
def test_memory_does_not_count(tensor):
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    copy = torch.empty(dense.shape, dtype=dense.dtype).copy_(dense)
    assert int(digest_of(tensor)) == int(digest_of(copy))


def test_every_part_of_a_packed_tensor_counts():
    packed = pytest.importorskip("torchao.optim.subclass_8bit").OptimState8bit
    codes, scale = torch.arange(64, dtype=torch.uint8), torch.ones(2)
    book = torch.linspace(-1, 1, 256)

    def digest(**changes):
        parts = {"codes": codes, "scale": scale, "qmap": book, **changes}
        return int(digest_of(packed(parts["codes"], parts["scale"], parts["qmap"], signed=True)))

    assert digest() == digest(codes=codes.clone())
    assert digest() != digest(codes=codes.flip(0))
    assert digest() != digest(scale=torch.tensor([1.0, 2.0]))
