"""The zoo's networks against the published sizes, and against what every test bed relies on."""

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from growthring import zoo
from growthring.zoo.init import normal_
from growthring.zoo.transformer import sinusoids

VOCAB = 11


def images(size: int, channels: int = 3) -> tuple[Tensor, ...]:
    return (torch.randn(4, channels, size, size),)


def tokens(length: int, num_texts: int = 1) -> tuple[Tensor, ...]:
    return tuple(torch.randint(VOCAB, (4, length)) for _ in range(num_texts))


def gpt(width: int, **kwargs: object) -> zoo.GPT:
    return zoo.GPT(VOCAB, 8, num_layers=2, num_heads=2, width=width, **kwargs)  # type: ignore[arg-type]


def transformer(width: int, **kwargs: object) -> zoo.Transformer:
    # The embedding keeps its dimension at every width, as in the paper's experiment.
    defaults: dict[str, object] = {
        "num_heads": 2,
        "d_embed": 12,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "max_length": 9,
    }
    return zoo.Transformer(VOCAB, VOCAB, d_model=width, **(defaults | kwargs))  # type: ignore[arg-type]


class Case(NamedTuple):
    """One network at small size: how to build it at a width, what to feed it, what comes of it."""

    make: Callable[..., nn.Module]
    args: Callable[[], tuple[Tensor, ...]]
    out_shape: tuple[int, ...]
    num_relus: int


# Adding a row here puts a network under every contract below.
CASES = {
    "resnet8": Case(zoo.resnet8, lambda: images(8), (4, 10), 7),
    "resnet20": Case(zoo.resnet20, lambda: images(8), (4, 10), 19),
    "resnet18": Case(zoo.resnet18, lambda: images(8), (4, 100), 17),
    "resnet50": Case(zoo.resnet50, lambda: images(33), (4, 1000), 49),
    "vgg11": Case(zoo.vgg11, lambda: images(32), (4, 10), 8),
    "vgg19": Case(zoo.vgg19, lambda: images(32), (4, 100), 16),
    "mobilenetv1": Case(zoo.mobilenetv1, lambda: images(32), (4, 10), 27),
    "wrn28_1": Case(zoo.wrn28_1, lambda: images(8), (4, 10), 25),
    "wrn28_1_no_inner_norm": Case(
        lambda **kwargs: zoo.wrn28_1(inner_norm=False, **kwargs), lambda: images(8), (4, 10), 25
    ),
    "wrn28_1_no_norm": Case(
        lambda **kwargs: zoo.wrn28_1(norm=False, **kwargs), lambda: images(8), (4, 10), 25
    ),
    "cnn4": Case(zoo.cnn4, lambda: images(32), (4, 10), 4),
    "cnn4_flatten": Case(
        lambda **kwargs: zoo.cnn4(image_size=16, pools=(2, 2, 2, 1), **kwargs),
        lambda: images(16),
        (4, 10),
        4,
    ),
    "mlp8": Case(
        lambda **kwargs: zoo.mlp8(in_features=48, **kwargs), lambda: images(4), (4, 10), 8
    ),
    "transformer": Case(transformer, lambda: tokens(6, num_texts=2), (4, 6, VOCAB), 4),
    "gpt": Case(gpt, lambda: tokens(6), (4, 6, VOCAB), 0),
    "gpt_untied": Case(
        lambda **kwargs: gpt(tied=False, **kwargs), lambda: tokens(6), (4, 6, VOCAB), 0
    ),
}
all_networks = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def differ(a: Tensor, b: Tensor) -> bool:
    return (a - b).abs().max().item() > 1e-3  # far above rounding


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# --- published sizes, on the meta device: full-size networks without storage ---


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # ResNet-20 has 269,722 parameters with parameter-free shortcuts; ours has two projections
        # (16*32 + 2*32 + 32*64 + 2*64 parameters). ResNet-8 lacks two blocks in each stage.
        (zoo.resnet20, 269_722 + 2_752),
        (zoo.resnet8, 272_474 - sum(2 * (2 * 9 * c * c + 4 * c) for c in (16, 32, 64))),
        (zoo.resnet18, 11_220_132),
        (lambda: zoo.resnet18(10), 11_173_962),
        (zoo.resnet50, 25_557_032),
        (zoo.vgg11, 9_231_114),
        (lambda: zoo.vgg19(10), 20_040_522),
        (zoo.vgg19, 20_040_522 + 90 * 513),
        (zoo.mobilenetv1, 3_217_226),
        (lambda: zoo.mobilenetv1(1000, stem_stride=2), 4_231_976),
        (zoo.wrn28_1, 369_498),
        # One norm fewer in each of the four blocks of 16, 32 and 64 channels.
        (lambda: zoo.wrn28_1(inner_norm=False), 369_498 - 2 * 4 * (16 + 32 + 64)),
        # No norm: 2 * 912 scales and shifts fewer, 1008 biases more.
        (lambda: zoo.wrn28_1(norm=False), 369_498 - 1_824 + 1_008),
        (zoo.cnn4, 9 * (3 * 64 + 64 * 128 + 128 * 256 + 256 * 512) + 2 * 960 + 513 * 10),
        (zoo.mlp8, 3073 * 500 + 7 * 501 * 500 + 501 * 10),
        (zoo.gpt2_124m, 124_439_808),
    ],
)
def test_full_size_has_the_published_number_of_parameters(make, expected):
    with torch.device("meta"):
        model = make()
    assert num_parameters(model) == expected


@pytest.mark.parametrize(("d_model", "d_embed"), [(512, 512), (64, 512)])
def test_transformer_has_the_number_of_parameters_of_its_formula(d_model, d_embed):
    with torch.device("meta"):
        model = zoo.Transformer(1000, 1200, d_model=d_model, d_embed=d_embed)
    attention = 4 * d_model * (d_model + 1)
    feed_forward = d_model * 4 * d_model + 4 * d_model + 4 * d_model * d_model + d_model
    norm = 2 * d_model
    encoder = 6 * (attention + feed_forward + 2 * norm)
    decoder = 6 * (2 * attention + feed_forward + 3 * norm)
    ends = (1000 + 1200) * d_embed + 2 * (d_embed + 1) * d_model + (d_model + 1) * 1200
    assert num_parameters(model) == encoder + decoder + ends


@pytest.mark.parametrize(
    ("make", "size", "mega_macs"),
    [
        (zoo.resnet20, 32, 40.8),
        (lambda: zoo.resnet20(width=4), 32, 2.6),
        (zoo.resnet18, 32, 555.5),
        (zoo.resnet50, 224, 4089.2),
        (zoo.vgg11, 32, 152.8),
        (lambda: zoo.vgg11(width=16), 32, 9.9),
        (zoo.vgg19, 32, 398.2),
        (zoo.mobilenetv1, 32, 46.4),
        (lambda: zoo.mobilenetv1(width=8), 32, 3.3),
        (lambda: zoo.mobilenetv1(1000, stem_stride=2), 224, 568.7),
    ],
)
def test_full_size_has_the_known_number_of_multiply_adds(make, size, mega_macs):
    with torch.device("meta"):
        model = make().eval()
        image = torch.empty(1, 3, size, size)
    with FlopCounterMode(display=False) as counter:
        model(image)
    assert round(counter.get_total_flops() / 2 / 1e6, 1) == mega_macs


# --- contracts of every network ---


@all_networks
@pytest.mark.parametrize("width", [2, 6, 10])
def test_works_at_any_width(case, width):
    model = case.make(width=width)
    assert model(*case.args()).shape == case.out_shape


@all_networks
def test_every_parameter_takes_part(case):
    # Not .sum(): the gradient of a sum of normalised values vanishes.
    model = case.make(width=6)
    logits = model(*case.args())
    (logits * torch.randn_like(logits)).sum().backward()
    unused = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # A key's bias adds the same to all logits of one softmax; a bias before BatchNorm is centred
    # away. Both gradients are zero but for rounding, which can be exactly zero.
    norm_follows = isinstance(model, zoo.VGG)
    unused = [n for n in unused if not n.endswith("key.bias")]
    assert [n for n in unused if not (norm_follows and n.endswith("bias"))] == []


@all_networks
def test_no_width_is_fixed_outside_the_layers(case):
    # Whoever widens a model replaces layers (or their tensors); forward() must not remember widths.
    model, wide = case.make(width=4).eval(), case.make(width=8).eval()
    for name, layer in wide.named_modules():
        if name and not list(layer.children()):
            model.set_submodule(name, copy.deepcopy(layer))
    args = case.args()
    torch.testing.assert_close(model(*args), wide(*args), rtol=0, atol=0)


@all_networks
def test_one_generator_seed_gives_one_network_whatever_the_global_seed(case):
    torch.manual_seed(1)
    first = case.make(width=4, generator=torch.Generator().manual_seed(7))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = case.make(width=4, generator=torch.Generator().manual_seed(7))
    assert torch.equal(before, torch.get_rng_state())
    other = case.make(width=4, generator=torch.Generator().manual_seed(8))
    for (name, a), b, c in zip(
        first.named_parameters(), second.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
        if a.ndim > 1:
            assert not torch.equal(a, c), name


@all_networks
def test_without_a_generator_the_global_seed_counts(case):
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(torch.cat([p.flatten() for p in case.make(width=4).parameters()]))
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


@all_networks
def test_biases_start_at_zero_and_norms_at_one(case):
    for name, module in case.make(width=4).named_modules():
        if isinstance(module, (_BatchNorm, nn.LayerNorm)):
            assert (module.weight == 1).all() and (module.bias == 0).all(), name
        elif getattr(module, "bias", None) is not None:
            assert (module.bias == 0).all(), name


@all_networks
@pytest.mark.each(8)
def test_exports_with_every_relu(case):
    model = case.make(width=4).eval()
    args = case.args()
    exported = torch.export.export(model, args, strict=False)
    torch.testing.assert_close(exported.module()(*args), model(*args))
    relus = [node for node in exported.graph.nodes if node.target is torch.ops.aten.relu.default]
    assert len(relus) == case.num_relus


@all_networks
def test_survives_state_dict(case):
    model, other = case.make(width=4).eval(), case.make(width=4).eval()
    other.load_state_dict(model.state_dict())
    args = case.args()
    assert torch.equal(model(*args), other(*args))


@all_networks
@pytest.mark.each(4)
def test_learns_one_batch(case):
    model = case.make(width=8)
    args = case.args()
    torch.manual_seed(0)
    labels = torch.randint(10, case.out_shape[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(20):
        loss = F.cross_entropy(model(*args).flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # for the network without any norm
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-3:]) < 0.9 * losses[0]


def test_image_networks_take_other_channels():
    for make in (zoo.resnet8, zoo.vgg11, zoo.mobilenetv1, zoo.wrn28_1, zoo.cnn4):
        assert make(width=4, in_channels=1)(*images(32, channels=1)).shape == (4, 10)


def test_builds_under_fake_tensors():
    before = torch.get_rng_state()
    with FakeTensorMode():
        model = zoo.resnet20(generator=torch.Generator().manual_seed(0))
        assert model(torch.empty(2, 3, 32, 32)).shape == (2, 10)
    assert torch.equal(before, torch.get_rng_state())


# --- initial weights ---


def test_hidden_weights_are_he_initialised():
    model = zoo.mobilenetv1(generator=torch.Generator().manual_seed(0))
    # The depthwise kernel has 9 inputs to a unit, the pointwise one 512.
    depthwise, pointwise = model.blocks[6].depthwise.weight, model.blocks[6].pointwise.weight
    assert depthwise.std().item() == pytest.approx(math.sqrt(2 / 9), rel=0.05)
    assert pointwise.std().item() == pytest.approx(math.sqrt(2 / 512), rel=0.02)


@pytest.mark.parametrize(
    ("make", "output"),
    [
        (zoo.resnet18, "fc"),
        (zoo.vgg19, "classifier"),
        (lambda: zoo.mobilenetv1(100), "fc"),
        (lambda: zoo.wrn28_1(100), "fc"),
        (lambda: zoo.cnn4(100), "classifier"),
        (lambda: zoo.mlp8(100), "classifier"),
        (lambda: transformer(64), "output"),
    ],
)
def test_output_weights_have_variance_one_over_fan_in_squared(make, output):
    torch.manual_seed(0)
    layer = make().get_submodule(output)
    assert layer.weight.std().item() == pytest.approx(1 / layer.in_features, rel=0.1)


def test_gpt_is_initialised_as_gpt2():
    model = zoo.GPT(500, 64, num_layers=8, num_heads=2, width=128)
    assert model.token_embedding.weight.std().item() == pytest.approx(0.02, rel=0.03)
    block = model.blocks[0]
    assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.03)
    for layer in (block.attention.out, block.fc2):  # 16 branches
        assert layer.weight.std().item() == pytest.approx(0.02 / 4, rel=0.03)


def test_gpt_ties_its_output_to_its_embedding():
    model = gpt(8)
    assert model.output.weight is model.token_embedding.weight
    untied = gpt(8, tied=False)
    assert num_parameters(untied) == num_parameters(model) + 8 * VOCAB


def test_wide_resnet_without_norm_keeps_its_stream_at_one_size():
    model = zoo.wrn28_1(norm=False, generator=torch.Generator().manual_seed(0))
    first = model.conv1(*images(16))
    assert 0.5 < (model.stages(first).std() / first.std()).item() < 2.5


def test_a_weight_without_storage_accepts_a_generator():
    generator = torch.Generator().manual_seed(0)
    assert normal_(torch.empty(3, device="meta"), 1.0, generator).is_meta


# --- attention ---


def test_gpt_does_not_read_the_future():
    model = gpt(8).eval()
    (text,) = tokens(6)
    changed = text.clone()
    changed[:, 4] = (text[:, 4] + 1) % VOCAB
    before, after = model(text), model(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert differ(before[:, 4:], after[:, 4:])


def test_transformer_does_not_read_the_future_of_the_target():
    model = transformer(8).eval()
    source, target = tokens(6, num_texts=2)
    changed = target.clone()
    changed[:, 4] = (target[:, 4] + 1) % VOCAB
    before, after = model(source, target), model(source, changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert differ(before[:, 4:], after[:, 4:])


def test_transformer_reads_all_of_the_source():
    model = transformer(8).eval()
    source, target = tokens(6, num_texts=2)
    for position in range(6):
        changed = source.clone()
        changed[:, position] = (source[:, position] + 1) % VOCAB
        assert differ(model(source, target)[:, 0], model(changed, target)[:, 0])


def test_transformer_knows_the_order_of_the_source():
    model = transformer(8).eval()
    (source,) = tokens(6)
    assert differ(model.encode(source.flip(1)).flip(1), model.encode(source))


def test_padding_mask_hides_the_padding():
    model = transformer(8).eval()
    source, target = tokens(6, num_texts=2)
    padding = torch.zeros(4, 6, dtype=torch.bool)
    padding[:, 4:] = True
    masked = model(source, target, padding)
    torch.testing.assert_close(masked, model(source[:, :4], target))
    other = torch.where(padding, (source + 1) % VOCAB, source)
    torch.testing.assert_close(masked, model(other, target, padding))
    assert differ(masked, model(source, target))


def test_padding_differs_from_sentence_to_sentence():
    model = transformer(8).eval()
    source, target = tokens(6, num_texts=2)
    padding = torch.zeros(4, 6, dtype=torch.bool)
    padding[1, 3:] = True
    masked = model(source, target, padding)
    torch.testing.assert_close(masked[1:2], model(source[1:2, :3], target[1:2]))
    torch.testing.assert_close(masked[2:], model(source[2:], target[2:]))


def copy_attention_(reference: nn.MultiheadAttention, ours: nn.Module) -> None:
    parts = (ours.query, ours.key, ours.value)
    reference.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    reference.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    reference.out_proj.load_state_dict(ours.out.state_dict())


@torch.no_grad()
def test_blocks_compute_what_torchs_own_layers_do():
    model = transformer(8).eval()
    for parameter in model.parameters():
        parameter.normal_(0, 0.3)  # biases and norms too, so that none goes unnoticed
    encoder, decoder = model.encoder[0], model.decoder[0]
    their_encoder = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.1, batch_first=True).eval()
    their_decoder = nn.TransformerDecoderLayer(8, 2, 32, dropout=0.1, batch_first=True).eval()
    copy_attention_(their_encoder.self_attn, encoder.attention)
    copy_attention_(their_decoder.self_attn, decoder.attention)
    copy_attention_(their_decoder.multihead_attn, decoder.cross_attention)
    for theirs, ours in ((their_encoder, encoder), (their_decoder, decoder)):
        theirs.linear1.load_state_dict(ours.feed_forward.fc1.state_dict())
        theirs.linear2.load_state_dict(ours.feed_forward.fc2.state_dict())
        for norm in ("norm1", "norm2", "norm3"):
            if hasattr(ours, norm):
                getattr(theirs, norm).load_state_dict(getattr(ours, norm).state_dict())

    source, target = torch.randn(4, 5, 8), torch.randn(4, 6, 8)
    padding = torch.arange(5) >= torch.tensor([5, 4, 3, 1])[:, None]
    readable = ~padding[:, None, None, :]
    expected = their_encoder(source, src_key_padding_mask=padding)
    kept = ~padding[..., None]  # torch's fast path writes zeros at padding
    torch.testing.assert_close(encoder(source, readable) * kept, expected * kept)
    expected = their_decoder(
        target,
        source,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(6),
        memory_key_padding_mask=padding,
        tgt_is_causal=True,
    )
    torch.testing.assert_close(decoder(target, source, readable), expected)


def test_head_width_is_free():
    model = transformer(10, num_heads=4, d_head=3, d_ffn=7)
    attention = model.encoder[0].attention
    assert attention.query.weight.shape == (12, 10) and attention.out.weight.shape == (10, 12)
    assert model(*tokens(6, num_texts=2)).shape == (4, 6, VOCAB)


def test_positional_table():
    table = sinusoids(50, 7)
    assert table.shape == (50, 7)
    for position, place in [(0, 0), (3, 2), (49, 5), (49, 6)]:
        angle = position / 10000 ** (2 * (place // 2) / 7)
        expected = math.cos(angle) if place % 2 else math.sin(angle)
        assert table[position, place].item() == pytest.approx(expected, abs=1e-5)
    assert "positions" not in transformer(8).state_dict()


# --- wording of errors ---


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: gpt(9), "width 9 does not divide into 2 heads: pass a multiple of 2, such as 10."),
        (
            lambda: gpt(8)(*tokens(9)),
            "text of 9 tokens, but block_size is 8: "
            "pass a larger block_size to GPT, or shorten the text.",
        ),
        (
            lambda: transformer(9),
            "d_model 9 does not divide into 2 heads: pass d_head as well.",
        ),
        (
            lambda: transformer(8)(*tokens(10, num_texts=2)),
            "sentence of 10 tokens, but max_length is 9: "
            "pass a larger max_length to Transformer, or shorten the sentence.",
        ),
        (
            lambda: zoo.cnn4(image_size=16),
            "images of 16x16 pixels vanish in poolings of (4, 2, 2, 2): "
            "need at least 32 pixels a side, or pass smaller pools.",
        ),
    ],
)
def test_errors_say_what_to_do(act, message):
    with pytest.raises(ValueError) as error:
        act()
    assert str(error.value) == message
