"""The command `growthring`, in this process and in one of its own."""

import contextlib
import json
import os
import subprocess
import sys
import threading

from growthring.cli import main

HANGS = 1800.0  # seconds; only ever turns a hang into a failure

TINY = [
    *("--recipe", "demo", "--set", "epochs=3", "--set", "stages=3", "--set", "num_train=96"),
    *("--set", "first_epochs=none", "--set", "model_options.width=4", "--set", "batch_size=32"),
]

OWN = """\
import glob, os
import torch
from torch import nn
from growthring.train import Recipe

def wait_at_gate():
    '''Once a run has come so far: tells the test, and goes on when the test says so or ends.'''
    folder, step, passes, told, go = os.environ['GATE'].rsplit(':', 4)
    found = glob.glob(os.path.join(folder, 'checkpoints', 'step-*[0-9]'))
    is_there = bool(glob.glob(os.path.join(folder, 'config.json')))
    if is_there and any(int(path[-9:]) >= int(step) for path in found):
        if int(passes) > 1:
            os.environ['GATE'] = f'{folder}:{step}:{int(passes) - 1}:{told}:{go}'
            return
        del os.environ['GATE']
        os.write(int(told), b'!')
        os.read(int(go), 1)

class Gated(nn.Module):
    '''Linear layers and a LayerNorm, which stop at the gate of a test.'''

    def __init__(self, width):
        super().__init__()
        self.up, self.norm = nn.Linear(64, width), nn.LayerNorm(width)
        self.down, self.drop = nn.Linear(width, 10), nn.Dropout(0.1)

    def forward(self, x):
        if 'GATE' in os.environ and not torch.compiler.is_exporting():
            wait_at_gate()
        return self.down(self.drop(self.norm(self.up(x.flatten(1)))))

def mine():
    return Recipe('mine', Gated, {'width': 8}, input_shape=(1, 8, 8), shift=1, mirror=False,
        num_train=96, batch_size=16, stages=3, epochs=3, growth=None, lr=0.05)

def fails():
    raise RuntimeError('the user made a mistake')

def number():
    return 3

value = 5
"""


def run(capsys, *arguments):
    """Exit status, standard output and standard error of a command."""
    capsys.readouterr()
    try:
        status = main([str(a) for a in arguments])
    except SystemExit as stop:  # argparse
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err


def start(*arguments):
    """The command in a process of its own."""
    return _started(arguments, {}, ())


class Gate:
    """Stops the command `growthring` in a process of its own, within a pass of the model of OWN.

    It stops at a pass after a checkpoint of that step, or a later one, is in the folder (which may be a
    pattern), so the order of events is the test's. Nothing here waits for a time.

    Attributes:
        process: it.
    """

    def __init__(self, folder, step, *arguments, passes=1):
        self._told, told = os.pipe()
        go, self._go = os.pipe()
        place = {"GATE": f"{folder}:{step}:{passes}:{told}:{go}"}
        self.process = _started(arguments, place, (told, go))
        self._guard = _guard(self.process)
        os.close(told)
        os.close(go)

    def wait(self):
        """Returns when the process stands at the gate."""
        if os.read(self._told, 1) != b"!":  # it ended, and its end of the pipe with it
            raise AssertionError(f"it never came to the gate: {self.process.communicate()}")

    def open(self):
        """Lets it go on."""
        os.write(self._go, b"!")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._guard.cancel()
        for end in (self._told, self._go):
            os.close(end)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


def _started(arguments, environment, descriptors):
    return subprocess.Popen(
        [sys.executable, "-m", "growthring", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        pass_fds=descriptors,
    )


def _guard(process):
    """Ends a process that hangs, so that the test fails."""
    timer = threading.Timer(HANGS, process.kill)
    timer.daemon = True
    timer.start()
    return timer


def lines_of(process):
    """What it says on standard error, line by line as it says it; it has ended when the lines have."""
    guard = _guard(process)
    try:
        yield from process.stderr
        process.wait()
    finally:
        guard.cancel()


def one_object(text):
    """The one JSON object that a text is."""
    found = json.loads(text)
    assert isinstance(found, dict)
    return found
