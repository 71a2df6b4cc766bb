"""`make demo` grows through all its stages without a jump, and ends in the original model."""

import re

from growthring.demo import main


def test_the_demo_shows_an_exact_growth(capsys):
    main()
    out = capsys.readouterr().out
    changes = [
        float(line.split()[3]) for line in out.splitlines() if re.match(r"^ +\d+ +[\d,]+ ", line)
    ]
    assert len(changes) == 8 and max(changes) < 1e-5
    assert "outputs differ by 0.0e+00" in out
    assert "272,474" in out
