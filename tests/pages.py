"""Pages of the docs, whose scripts are run as a reader would."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page, language="python"):
    """The code in a page, in order."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.S)


def run_script(code, folder, count=None, **environment):
    """Runs a script as train.py in a folder, on so many processes under torchrun; it must not fail."""
    (folder / "train.py").write_text(code)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    words = [sys.executable, *(launch if count else []), "train.py"]
    ran = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert ran.returncode == 0, ran.stderr
    return ran
