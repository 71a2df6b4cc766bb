"""The committed comparisons: readable, of today's contenders, and such that the same command goes on with them."""

from pathlib import Path

import pytest

from growthring.checkpoint import read_json
from growthring.compare import KNOWN, Contender
from growthring.compare.manifest import read_manifest
from growthring.compare.standings import read_standings
from growthring.train import RECIPES, Recipe, change
from scripts import streams, translation

RESULTS = Path(__file__).parents[2] / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/comparison.json"))
# Comparisons that a script makes, not the command.
STUDIES = {"multi30k-small": translation.base} | {
    name: RECIPES[name] for name in streams.STREAMS.values()
}


def _recipe(folder, manifest) -> Recipe:
    """The recipe whose settings the contenders change, as it is made today."""
    if manifest.recipe is not None:
        return RECIPES[manifest.recipe]()
    return change(STUDIES[folder.name](), {"lr": manifest.settings["lr"]})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_stored_settings_are_those_of_the_contenders(folder):
    manifest = read_manifest(folder)
    recipe = _recipe(folder, manifest)
    for name, entry in manifest.contenders.items():
        if name in KNOWN:  # else a variant of that comparison
            assert KNOWN[name].of(name, recipe).settings == entry.settings
    runs = 0
    for name, entry in manifest.entries().items():
        for seed in range(entry.seeds):
            path = folder / manifest.folder(name, seed) / "config.json"
            if path.exists():
                made = Contender(name, entry.settings).recipe(recipe, seed).as_dict()
                assert read_json(path)["settings"] == made
                runs += 1
    assert runs >= len(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_rows_are_those_of_the_results(folder):
    rows = [row.as_dict() for row in read_standings(folder, read_manifest(folder))]
    stored = read_json(folder / "results.json")["rows"]
    assert [(row["name"], list(row["settings"])) for row in rows] == [
        (row["name"], row["settings"]) for row in stored
    ]
    assert [row["values"] for row in rows] == [row["values"] for row in stored]
