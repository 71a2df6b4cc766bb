"""Data that grows with the stages: D_0 ⊂ D_1 ⊂ … (the paper's appendix on incremental data streams)."""

from growthring.streams.base import GrowingData as GrowingData
from growthring.streams.batches import StageBatches as StageBatches
from growthring.streams.classes import ProgressiveClasses as ProgressiveClasses
from growthring.streams.data import ProgressiveData as ProgressiveData
from growthring.streams.labels import labels_of as labels_of
from growthring.streams.sets import ProgressiveSets as ProgressiveSets
