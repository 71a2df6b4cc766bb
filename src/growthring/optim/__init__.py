"""Optimizers that know the rings, and what growth does to the state of any optimizer."""

from growthring.optim.adam import Adam as Adam, AdamW as AdamW
from growthring.optim.avagrad import AvaGrad as AvaGrad
from growthring.optim.base import RingOptimizer as RingOptimizer
from growthring.optim.lars import LARS as LARS
from growthring.optim.recorder import RingRecorder as RingRecorder
from growthring.optim.sgd import SGD as SGD
from growthring.optim.wrap import with_rings as with_rings
