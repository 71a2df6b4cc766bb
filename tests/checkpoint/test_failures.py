"""write_checkpoint on full disks and where it may not write: nothing half, nothing lost."""

import errno
import os
import re
import resource
import shutil
import subprocess
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest

from growthring.checkpoint import CheckpointError, discard_after, list_checkpoints, write_checkpoint
from tests.checkpoint.processes import on_call, run_in_child
from tests.checkpoint.runs import check_whole, names, state_of, steps


@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step"])
@pytest.mark.each(2)
def test_a_full_disk_at_any_call(again, tmp_path):
    """Every use of the file system fails once; there is an error or a whole new checkpoint."""
    new = 2 if again else 3
    full = 0
    for step in (1, 2):
        write_checkpoint(tmp_path / "before", state_of(step), step)
    for number in range(1, 200):
        run = shutil.copytree(tmp_path / "before", tmp_path / str(number))

        def work(run=run, number=number):
            def fail():
                raise OSError(errno.ENOSPC, "No space left on device")

            count = on_call(run, number, fail)
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    write_checkpoint(run, state_of(new), new, keep=1)
            except CheckpointError as error:
                text = str(error)
                assert re.search(r"No space left on device \(.* MB are needed, .* free\)", text), (
                    text
                )
                assert "Every older checkpoint is as it was. Free some space" in text
                assert steps(run) in ([1, 2], [1, 2, new]), names(run)
                # What is deleted comes back at once; only the sync after the rename is too late.
                assert not any(name.startswith(".writing") for name in names(run))
                os._exit(3)
            os._exit(4 if caught else 5 if count() >= number else 0)

        code = run_in_child(work)
        assert code in (0, 3, 4, 5)
        full += code == 3
        check_whole(run, new) if code != 3 else check_whole(run, 2, new)
        write_checkpoint(run, state_of(9), 9, keep=1)
        assert names(run) == ["step-000000009"]
        shutil.rmtree(run)
        if code == 0:
            break
    else:
        raise AssertionError("the write never ended")
    assert full >= 8


def test_a_write_that_is_cut_short_by_the_system(tmp_path):
    """A limit on the size of files: the kernel refuses in the middle of the tensors."""
    write_checkpoint(tmp_path, state_of(1), 1)

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
        with pytest.raises(
            CheckpointError, match=r"cannot write .*step-000000002': File too large"
        ):
            write_checkpoint(tmp_path, state_of(2, 1_000_000), 2)

    assert run_in_child(work) == 0
    assert names(tmp_path) == ["step-000000001"]
    check_whole(tmp_path, 1)


@contextmanager
def small_disk(folder, size="3m"):
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("cannot mount a small tmpfs here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(tmp_path):
    with small_disk(tmp_path):
        write_checkpoint(tmp_path, state_of(1), 1)
        with pytest.raises(
            CheckpointError,
            match=r"No space left on device \(4.0 MB are needed, [23]\.\d MB free\)",
        ):
            write_checkpoint(tmp_path, state_of(2, 1_000_000), 2)
        assert names(tmp_path) == ["step-000000001"]
        check_whole(tmp_path, 1)
        write_checkpoint(tmp_path, state_of(2), 2)
        check_whole(tmp_path, 2)


@pytest.fixture
def locked_folder():
    """A folder in which this user may not write; root becomes nobody for the test."""
    folder = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    write_checkpoint(folder, state_of(1), 1)
    os.chmod(folder / "checkpoints", 0o555)
    os.chmod(folder, 0o555)
    if root:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        os.chmod(folder, 0o755)
        os.chmod(folder / "checkpoints", 0o755)
        shutil.rmtree(folder)


def test_no_permission_to_write(locked_folder):
    with pytest.raises(CheckpointError, match=r"Permission denied.*Check who may write there"):
        write_checkpoint(locked_folder, state_of(2), 2)
    check_whole(locked_folder, 1)
    with pytest.raises(CheckpointError, match="Permission denied"):
        discard_after(locked_folder, 0)


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "checkpoints").write_text("x")
    with pytest.raises(CheckpointError, match=r"cannot write .*Check the path"):
        write_checkpoint(tmp_path, {}, 1)
    with pytest.raises(CheckpointError, match="cannot look for checkpoints in"):
        list_checkpoints(tmp_path)


def test_a_surplus_one_that_cannot_go_is_a_warning(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, state_of(1), 1)

    def refuse(folder):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("growthring.checkpoint.write.delete_folder", refuse)
    with pytest.warns(UserWarning, match=r"is written, but .*step-000000001' could not be deleted"):
        write_checkpoint(tmp_path, state_of(2), 2, keep=1)
    assert steps(tmp_path) == [1, 2]


def test_ctrl_c_leaves_nothing_half(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, state_of(1), 1)

    def interrupt(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path, state_of(2), 2)
    assert names(tmp_path) == ["step-000000001"]
