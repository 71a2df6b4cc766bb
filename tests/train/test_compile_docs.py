"""docs/compile.md: its script runs with a backend that needs no compiler; thin networks survive inductor."""

import os
import subprocess
import sys

import pytest
import torch

from tests.pages import blocks

THIN = """
import torch
from growthring import zoo
from growthring.train.compiling import CompiledStage

torch.manual_seed(0)
net = zoo.resnet8(width=4)
x = torch.randn(16, 3, 16, 16)
forward, wanted = CompiledStage(net, 16), net(x)
for _ in range(60):
    net.zero_grad()
    outputs = forward(x)
    outputs.sum().backward()
torch.testing.assert_close(outputs, wanted, rtol=1e-3, atol=1e-4)
print("survived")
"""


def test_the_script_grows_a_compiled_model(capsys):
    torch.manual_seed(0)
    code = blocks("compile.md")[0]
    call = "torch.compile(plan.build_seed())"
    assert call in code
    cheap = code.replace(call, 'torch.compile(plan.build_seed(), backend="aot_eager")')
    exec(compile(cheap, "compile.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.count("grew") == 2 and printed.rstrip().endswith("True")


@pytest.mark.slow
def test_a_thin_resnet_survives_inductor_where_onednn_has_its_fault():
    """With channels_last this aborts: "free(): invalid next size"."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", THIN], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "survived"
