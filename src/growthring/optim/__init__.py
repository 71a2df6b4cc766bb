"""Optimizers that know the rings, and what growth does to the state of any optimizer."""

from growthring.optim.adam import Adam as Adam, AdamW as AdamW
from growthring.optim.avagrad import AvaGrad as AvaGrad
from growthring.optim.base import RingOptimizer as RingOptimizer
from growthring.optim.lars import LARS as LARS
from growthring.optim.recorder import RingRecorder as RingRecorder
from growthring.optim.sgd import SGD as SGD
from growthring.optim.wrap import with_rings as with_rings

# By the names that plans and recipes have for them.
OPTIMIZERS: dict[str, type[RingOptimizer]] = {
    kind.__name__.lower(): kind for kind in (SGD, Adam, AdamW, AvaGrad, LARS)
}
