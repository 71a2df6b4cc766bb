"""Settings for every test process, the doctests of src/ included (fixtures: tests/conftest.py)."""

import gc

import pytest
import torch

torch.set_num_threads(1)  # tests run in parallel processes; more threads only spin


def pytest_collection_finish() -> None:
    # What torch and the collection made stays: the collector need not walk through all of it again and again.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed_global_rng():
    # Constructors such as nn.Linear draw from the global generator: give every test the same
    # start, whatever ran before it in the same process.
    torch.manual_seed(0)
