"""docs/checkpoints.md: its script runs on two processes, and one goes on where they were."""

import shutil

import pytest

from tests.pages import blocks, run_script


def run(folder, count):
    (code,) = blocks("checkpoints.md")
    stage, total = run_script(code, folder, count).stdout.split()
    return int(stage), float(total)


@pytest.mark.slow
def test_the_script_goes_on_with_another_number_of_processes(tmp_path):
    stage, total = run(tmp_path, 2)
    assert stage > 0
    saved = {path.name for path in (tmp_path / "saved").iterdir()}
    assert saved == {"10", "20", "30"}
    for later in ("20", "30"):
        shutil.rmtree(tmp_path / "saved" / later)
    (tmp_path / "saved" / "20").mkdir()  # of a run that was killed while it wrote
    again = run(tmp_path, 1)
    assert again == (stage, pytest.approx(total, rel=1e-5))
