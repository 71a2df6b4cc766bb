"""The networks of the paper's experiments (section 4 and appendices), as plain torch modules."""

from .cnn import CNN as CNN, cnn4 as cnn4
from .gpt import GPT as GPT, gpt2_124m as gpt2_124m
from .init import init_fan_in_ as init_fan_in_, init_output_ as init_output_
from .mlp import MLP as MLP, mlp8 as mlp8
from .mobilenet import MobileNetV1 as MobileNetV1, mobilenetv1 as mobilenetv1
from .resnet import (
    BasicBlock as BasicBlock,
    Bottleneck as Bottleneck,
    ResNet as ResNet,
    resnet8 as resnet8,
    resnet18 as resnet18,
    resnet20 as resnet20,
    resnet50 as resnet50,
)
from .transformer import Transformer as Transformer
from .vgg import VGG as VGG, vgg11 as vgg11, vgg19 as vgg19
from .wrn import WideResNet as WideResNet, wrn28_1 as wrn28_1
