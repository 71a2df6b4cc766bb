"""The command `growthring`, in this process and in one of its own."""

import json
import os
import subprocess
import sys
import time

from growthring.cli import main

TINY = [
    *("--recipe", "demo", "--set", "epochs=3", "--set", "stages=3", "--set", "num_train=96"),
    *("--set", "first_epochs=none", "--set", "model_options.width=4", "--set", "batch_size=32"),
]

OWN = """\
import os, time
import torch
from torch import nn
from growthring.train import Recipe

class Slow(nn.Module):
    '''Linear layers and a LayerNorm; each pass may take its time, as SLOW says.'''

    def __init__(self, width):
        super().__init__()
        self.up, self.norm = nn.Linear(64, width), nn.LayerNorm(width)
        self.down, self.drop = nn.Linear(width, 10), nn.Dropout(0.1)

    def forward(self, x):
        if not torch.compiler.is_exporting():
            time.sleep(float(os.environ.get('SLOW', '0')))
        return self.down(self.drop(self.norm(self.up(x.flatten(1)))))

def mine():
    return Recipe('mine', Slow, {'width': 8}, input_shape=(1, 8, 8), shift=1, mirror=False,
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


def start(*arguments, slow=0.0):
    """The command in a process of its own."""
    environment = os.environ | {"SLOW": str(slow), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "growthring", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def wait_for_step(process, folder, step, seconds=60.0):
    """Waits until a run has written a checkpoint of that step or a later one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        found = (folder / "checkpoints").glob("step-*[0-9]")
        if any(int(path.name[5:]) >= step for path in found):
            return
        time.sleep(0.02)
    raise AssertionError(f"no checkpoint of step {step}: {process.poll()}")


def one_object(text):
    """The one JSON object that a text is."""
    found = json.loads(text)
    assert isinstance(found, dict)
    return found
