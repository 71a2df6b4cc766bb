"""RunLock: one process per run, and no one keeps it after death."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from growthring.checkpoint import CheckpointError, RunLock, RunLockedError, lock as lock_module
from tests.checkpoint.processes import run_in_child

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")


def held_elsewhere(run):
    """Whether another process is refused."""

    def work():
        try:
            with RunLock(run):
                os._exit(10)
        except RunLockedError as error:
            assert error.pid == os.getppid() and error.host == socket.gethostname()
            assert f"process {os.getppid()} on {socket.gethostname()} works on the run" in str(
                error
            )
            assert "Wait for it or stop it; or give this run another folder." in str(error)
            os._exit(11)

    code = run_in_child(work)
    assert code in (10, 11)
    return code == 11


def test_a_second_process_is_refused_with_the_pid(tmp_path):
    run = tmp_path / "new" / "run"
    with RunLock(run) as lock:
        assert lock.held and held_elsewhere(run)
        assert json.loads((run / "lock").read_text()) == {
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
    assert not lock.held and not held_elsewhere(run)
    with lock:
        assert held_elsewhere(run)


def test_a_failure_inside_lets_go(tmp_path):
    with pytest.raises(ZeroDivisionError), RunLock(tmp_path):
        raise ZeroDivisionError
    assert not held_elsewhere(tmp_path)


def test_the_same_process_is_refused_as_well(tmp_path):
    with RunLock(tmp_path) as lock:
        with pytest.raises(RunLockedError, match=r"this very process \(\d+\) works on the run"):
            RunLock(tmp_path).acquire()
        with pytest.raises(RunLockedError, match=r"this process holds .* already"):
            lock.acquire()
        assert held_elsewhere(tmp_path)
    lock.release()  # again: nothing happens


@pytest.mark.slow
def test_another_program_is_refused(tmp_path):
    program = (
        "import sys; from growthring.checkpoint import RunLock, RunLockedError\n"
        "try: RunLock(sys.argv[1]).acquire()\n"
        "except RunLockedError as error: print(error.pid)"
    )
    with RunLock(tmp_path):
        command = [sys.executable, "-c", program, str(tmp_path)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(output) == os.getpid()


def test_a_killed_process_has_let_go_at_once_though_its_workers_live(tmp_path):
    told, tell = os.pipe()
    wait, end = os.pipe()  # whoever reads from it waits until this process closes the other end
    pid = os.fork()
    if pid == 0:
        os.close(end)
        RunLock(tmp_path).acquire()
        if os.fork() == 0:  # a data loader; it speaks once it has come up and let go of the lock
            os.write(tell, f"{os.getpid()}\n".encode())
        os.read(wait, 1)
        os._exit(0)
    os.close(tell)
    os.close(wait)
    try:
        worker = int(os.read(told, 100))
        with pytest.raises(RunLockedError, match=f"process {pid} on"):
            RunLock(tmp_path).acquire()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    try:
        os.kill(worker, 0)  # it lives
        with RunLock(tmp_path):
            assert held_elsewhere(tmp_path)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(told)
        os.close(end)


def test_a_worker_that_ends_does_not_unlock_its_parent(tmp_path):
    with RunLock(tmp_path) as lock:
        assert run_in_child(lambda: lock.release()) == 0
        assert run_in_child(lambda: None) == 0
        assert held_elsewhere(tmp_path)


def test_an_unreadable_owner_is_another_process(tmp_path):
    with RunLock(tmp_path):
        (tmp_path / "lock").write_text("")
        with pytest.raises(RunLockedError, match="another process works on the run") as caught:
            RunLock(tmp_path).acquire()
    assert caught.value.pid is None


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock_module, "_lock", refuse)
    num_open = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else None
    with pytest.raises(
        CheckpointError, match=r"cannot lock .*: No locks available\. Put the run on"
    ):
        RunLock(tmp_path).acquire()
    if num_open is not None:
        assert len(os.listdir("/proc/self/fd")) == num_open


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*/file/lock'"):
        RunLock(tmp_path / "file").acquire()
