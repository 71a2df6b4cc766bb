"""Comparisons that are counted in steps: rivals at the very cost, stored and read again, mixed with epochs."""

import dataclasses
import math

import pytest

from growthring.checkpoint import read_json
from growthring.compare import Comparison, Contender, format_table, results
from growthring.compare.manifest import read_manifest, write_manifest
from growthring.planning.lengths import Length
from growthring.train import Silence
from tests.compare.comparisons import counted_clocks
from tests.train.runs import stepped

CONTENDERS = ("paired", Contender("brief", {"epochs": 3}))


def compare(out, recipe=None):
    recipe = stepped(40) if recipe is None else recipe
    return Comparison(recipe, CONTENDERS, 1, out, progress=Silence())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        counted_clocks(patch)
        return out, compare(out).run()


def test_rivals_have_the_cost_to_one_step(whole):
    out, rows = whole
    by_name = {row.name: row for row in rows}
    decision, share = (
        read_manifest(out).decisions["fixed-flops"],
        by_name["paired"].flops_share.mean,
    )
    assert decision.length == Length(math.ceil(40 * share), "steps")
    assert share <= by_name["fixed-flops"].flops_share.mean < share + 1 / 40
    assert by_name["fixed-seconds"].length == Length(math.ceil(40 * 43 / 41), "steps")
    settings = read_json(out / "fixed-flops" / "seed-0" / "config.json")["settings"]
    assert settings["total_steps"] == decision.length.count and "epochs" not in settings
    assert all(row.state == "" for row in rows)


def test_it_is_stored_and_goes_on(whole):
    out, rows = whole
    manifest = read_manifest(out)
    assert manifest.length == Length(40, "steps")
    assert manifest.contenders["brief"].length == Length(3, "epochs")
    before = (out / "comparison.json").read_bytes()
    write_manifest(out, manifest)
    assert (out / "comparison.json").read_bytes() == before
    again = compare(out)
    assert [row.as_dict() for row in again.run()] == [row.as_dict() for row in rows]


def test_lengths_in_tables_and_results(whole):
    out, rows = whole
    only = [row for row in rows if row.name != "brief"]
    assert format_table(only).splitlines()[0].split()[1] == "steps"
    text = format_table(rows)
    assert text.splitlines()[0].split()[1] == "length"
    assert "40 steps" in text and "3 epochs" in text
    notes = (out / "table.md").read_text()
    count = read_manifest(out).decisions["fixed-flops"].length.count
    assert f"a schedule of {count} steps (fixed: 40)" in notes
    assert "as many steps as cost the FLOPs of paired" in (out / "report.html").read_text()
    found = {row["name"]: row for row in results(rows, read_manifest(out))["rows"]}
    assert found["fixed"]["total_steps"] == 40 and found["brief"]["epochs"] == 3
    assert read_json(out / "results.json")["decisions"]["fixed-flops"]["total_steps"] == count


def test_curves_are_over_steps(whole):
    text = (whole[0] / "report.html").read_text()
    assert "over steps" in text and "over epochs" not in text


def test_a_contender_of_another_unit_is_found_again(tmp_path):
    source = {"recipe": "mine", "settings": ["total_steps=40", "lr=0.1"], "data": None}
    comparison = Comparison(stepped(40), CONTENDERS, 1, tmp_path, progress=Silence(), source=source)
    found = {task.name: task for task in comparison.tasks}
    assert comparison._run_source(found["brief"])["settings"] == ["lr=0.1", "epochs=3", "seed=0"]
    paired = comparison._run_source(found["paired"])["settings"]
    assert paired == ["total_steps=40", "lr=0.1", "seed=0"]


def test_an_undecided_length_is_stored(whole):
    manifest = dataclasses.replace(read_manifest(whole[0]), decisions={})
    assert manifest.entries()["fixed-flops"].length is None
