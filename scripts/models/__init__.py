"""Models that growthring is tried on: the catalogue behind docs/models.md and tests/models."""

from scripts.models import handwritten, huggingface, timm_models, torchvision_models
from scripts.models.entry import Entry

CATALOGUE: tuple[Entry, ...] = (
    *huggingface.ENTRIES,
    *torchvision_models.ENTRIES,
    *timm_models.ENTRIES,
    *handwritten.ENTRIES,
)
