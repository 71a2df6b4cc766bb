"""Statistics that fade in: norms, means and sums over a width that has just grown.

New entries would change the mean and variance of every token, so they start with weight 0 in the
reduction, which makes the growth exact, and anneal to weight 1 over the stage; then the code runs as
it is again. While this lasts the `forward` of the modules concerned is replaced on the instance: no
parameter, buffer or wrapper is added, and the state_dict keeps the user's keys.
"""

from growthring.growing.fading.fade import Fade as Fade
from growthring.growing.fading.fades import Fades as Fades
from growthring.growing.fading.warning import fades_are_saved as fades_are_saved
