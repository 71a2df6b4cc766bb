"""Rows of rules/patches.py: windows of images and sequences."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from tests.graph.tables.base import IMAGE, Made, row
from tests.growth_contract import Net, randn


@row({"a": 6})
def unfolded_patches() -> Made:
    return Net(
        lambda self, x: self.b(F.unfold(self.a(x), 3).mT), a=nn.Conv2d(3, 6, 1), b=nn.Linear(54, 3)
    ), randn(*IMAGE)
