from collections import Counter
from collections.abc import Iterator

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


@pytest.hookimpl(tryfirst=True)  # before the cases are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a function marked `each(n)`, marks the cases between each n-th one as slow.

    Of two lists of parameters, an n that has no factor in common with the shorter one's length takes other
    pairs in each row.
    """
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        mark = item.get_closest_marker("each")
        if mark is None or item.get_closest_marker("slow"):
            continue
        case = str(item.path), item.nodeid.partition("[")[0]
        if seen[case] % mark.args[0]:
            item.add_marker("slow")
        seen[case] += 1


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Vocabularies that tests train are not kept in the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def generator() -> torch.Generator:
    """The explicit source of randomness of a test."""
    return torch.Generator().manual_seed(0)
