"""Data sets of the paper's experiments, and batches of them that resume bit by bit."""

from growthring.data.augmentation import Augmentation as Augmentation
from growthring.data.batches import Batches as Batches
from growthring.data.catalog import NAMES as NAMES, load as load
from growthring.data.crop import Crop as Crop
from growthring.data.errors import DataError as DataError
from growthring.data.examples import DatasetBatches as DatasetBatches
from growthring.data.folder import ImageFolder as ImageFolder
from growthring.data.folder_batches import FolderBatches as FolderBatches
from growthring.data.images import ImageData as ImageData
from growthring.data.loader import LoaderBatches as LoaderBatches
from growthring.data.pairs import (
    PAIRS as PAIRS,
    Pairs as Pairs,
    PairSplits as PairSplits,
    load_pairs as load_pairs,
)
from growthring.data.preprocessing import Preprocessing as Preprocessing
from growthring.data.sentences import (
    SentenceBatches as SentenceBatches,
    SentenceData as SentenceData,
    encode_pairs as encode_pairs,
)
from growthring.data.stream import BatchStream as BatchStream
from growthring.data.text import (
    TextBatches as TextBatches,
    TextData as TextData,
    load_text as load_text,
)
from growthring.data.vocabulary import Vocabulary as Vocabulary
