"""docs/checkpoints.md: its script runs on two processes, and one goes on where they were."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(folder, count):
    launch = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(count), "train.py"]
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", *launch], cwd=folder, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    stage, total = ran.stdout.split()
    return int(stage), float(total)


@pytest.mark.slow
def test_the_script_goes_on_with_another_number_of_processes(tmp_path):
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/checkpoints.md").read_text(), re.S)[1]
    (tmp_path / "train.py").write_text(code)
    stage, total = run(tmp_path, 2)
    assert stage > 0
    saved = {path.name for path in (tmp_path / "saved").iterdir()}
    assert saved == {"10", "20", "30"}
    for later in ("20", "30"):
        shutil.rmtree(tmp_path / "saved" / later)
    (tmp_path / "saved" / "20").mkdir()  # of a run that was killed while it wrote
    again = run(tmp_path, 1)
    assert again == (stage, pytest.approx(total, rel=1e-5))
