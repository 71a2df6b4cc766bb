import hypothesis
import pytest
import torch


class _TorchRandom:
    """Lets hypothesis reseed torch for every example, so that a failing example replays."""

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def getstate(self) -> torch.Tensor:
        return torch.get_rng_state()

    def setstate(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)


_torch_random = _TorchRandom()  # hypothesis keeps a weak reference only
hypothesis.register_random(_torch_random)
hypothesis.settings.register_profile("growthring", deadline=None, derandomize=True)
hypothesis.settings.load_profile("growthring")


@pytest.fixture
def generator() -> torch.Generator:
    """The explicit source of randomness of a test."""
    return torch.Generator().manual_seed(0)
