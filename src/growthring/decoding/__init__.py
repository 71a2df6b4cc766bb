"""Text out of trained models: translation by greedy and beam search, and language models that go on with a text."""

from growthring.decoding.checks import default_limit as default_limit
from growthring.decoding.hypotheses import Hypothesis as Hypothesis
from growthring.decoding.language import generate as generate
from growthring.decoding.translation import beam_search as beam_search, greedy as greedy
