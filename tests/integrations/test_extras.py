"""Without somebody's trainer growthring works, and its integration says what to install."""

import subprocess
import sys

CODE = """
import sys
import growthring
assert not {"accelerate", "transformers"} & set(sys.modules)
for name in ("accelerate", "transformers"):
    sys.modules[name] = None
    try:
        __import__(f"growthring.integrations.{name}")
    except ImportError as error:
        print(error)
"""


def test_an_extra_that_is_missing_is_named():
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert ran.stdout.splitlines() == [
        "growthring.integrations.accelerate needs Accelerate: pip install 'growthring[accelerate]'",
        "growthring.integrations.transformers needs transformers: pip install 'growthring[transformers]'",
    ]
