"""Text out of trained models: translation by greedy and beam search."""

from growthring.decoding.hypotheses import Hypothesis as Hypothesis
from growthring.decoding.translation import beam_search as beam_search, greedy as greedy
