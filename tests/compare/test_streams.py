"""Comparisons on data that grows: what is read from the runs, and the files that are made of it."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from growthring.compare.manifest import Entry, write_manifest
from growthring.compare.output import write_outputs
from growthring.compare.stage_plot import stage_plot
from growthring.planning.lengths import Length
from growthring.runs.configurations import Configuration
from growthring.runs.run import read_run
from tests.cli.commands import run
from tests.compare.comparisons import manifest
from tests.runs.samples import stage_records, write_run, write_stream

NAME = "{http://www.w3.org/2000/svg}"
LENGTH = Length(30, "epochs")


def compared(out, *kinds, seeds=3):
    """A folder as a comparison leaves it: of the runs with OSGD a tenth of the FLOPs is passes over old data."""
    entries = {"fixed": Entry({"fixed": True}, "", seeds, LENGTH, True, False)}
    entries |= {kind: Entry({}, "", seeds, LENGTH, False, True) for kind in kinds}
    for seed in range(seeds):
        write_run(out / "fixed" / f"seed-{seed}", True, seed)
        for kind in kinds:
            folder = out / kind / f"seed-{seed}"
            lost = {"plain": 0.3, "osgd": 0.12}[kind] + 0.01 * seed
            write_stream(folder, kind, seed, scores={"test_forgetting": lost})
            result = json.loads((folder / "result.json").read_text())
            result["pass_flops"] = 0.1 * result["flops"] if kind == "osgd" else 0
            (folder / "result.json").write_text(json.dumps(result))
    write_manifest(
        out,
        manifest(contenders=entries, match=kinds[0] if kinds else None, settings={"epochs": 30}),
    )
    return out


def configurations(folder, *kinds, seeds=2):
    runs = {
        kind: [write_stream(folder / f"{kind}{seed}", kind, seed) for seed in range(seeds)]
        for kind in kinds
    }
    return [Configuration(kind, tuple(map(read_run, paths))) for kind, paths in runs.items()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = compared(tmp_path_factory.mktemp("compared"), "plain", "osgd")
    return out, {row.name: row for row in write_outputs(out)}


def test_rows_have_forgetting_and_extra_passes(whole):
    _, rows = whole
    assert rows["plain"].forgetting.mean == pytest.approx(0.31)
    assert rows["plain"].forgetting.deviation == pytest.approx(0.01)
    assert rows["osgd"].pass_share.mean == pytest.approx(0.1)
    assert rows["osgd"].pass_share.deviation is None  # counted: the same for all seeds
    assert rows["plain"].pass_share is None and rows["fixed"].forgetting is None
    assert rows["osgd"].values["test_forgetting"] == pytest.approx([0.12, 0.13, 0.14])
    assert len(rows["osgd"].values["pass_flops"]) == 3
    assert not {"test_forgetting", "pass_flops"} & set(rows["fixed"].values)


def test_files_and_json(whole, capsys):
    out, _ = whole
    status, said, _ = run(capsys, "compare", "--table", "--json", "--out", out)
    rows = {row["name"]: row for row in json.loads(said)["rows"]}
    assert status == 0 and rows["osgd"]["pass_share"]["mean"] == pytest.approx(0.1)
    assert rows["osgd"]["scores"]["test_forgetting"]["mean"] == pytest.approx(0.13)
    assert json.loads((out / "results.json").read_text()) == json.loads(said)
    status, said, _ = run(capsys, "compare", "--table", "--out", out)
    assert status == 0 and "stages.svg" in said and "Forgetting, in points" in said
    table = (out / "table.md").read_text()
    assert "| forgetting |" in table and "| extra pass % |" in table and "| 13.00 ± 1.00 |" in table
    assert (out / "stages.svg").read_text().count('class="band"') == 2


def test_damaged_numbers_count_as_none(tmp_path):
    out = compared(tmp_path, "osgd", seeds=1)
    path = out / "osgd" / "seed-0" / "result.json"
    for odd in ("many", None, -1.0, {}, True):
        result = json.loads(path.read_text()) | {
            "pass_flops": odd,
            "scores": {"test_forgetting": odd},
        }
        path.write_text(json.dumps(result))
        row = next(row for row in write_outputs(out) if row.name == "osgd")
        assert row.pass_share is None and row.accuracy is not None


def test_without_stages_there_is_no_plot_of_them(tmp_path):
    write_outputs(compared(tmp_path))
    assert (tmp_path / "report.html").exists() and not (tmp_path / "stages.svg").exists()
    write_outputs(compared(tmp_path / "other", "plain", seeds=1), with_page=False)
    assert not (tmp_path / "other" / "stages.svg").exists()
    assert stage_plot([Configuration("a", (read_run(tmp_path / "none"),))]) == ""


def test_the_plot_is_one_svg_that_needs_nothing_else(tmp_path):
    svg = stage_plot(configurations(tmp_path, "plain", "osgd"))
    root = ElementTree.fromstring(svg)
    texts = [e.text for e in root.iter(f"{NAME}text")]
    for words in ("plain", "osgd", "classes seen", "20", "30", "40", "50"):
        assert words in texts
    kinds = [e.get("class") for e in root.iter(f"{NAME}path")]
    assert kinds == ["band", "band", "curve", "curve", "curve", "curve"]  # two in the legend
    assert "href" not in svg and "src=" not in svg and "nan" not in svg


def test_names_in_the_legend_have_rows_of_their_own(tmp_path):
    (one,) = configurations(tmp_path, "plain", seeds=1)
    names = [f"{'a rather long name <' if i % 2 else 'b'} {i}" for i in range(20)]
    svg = stage_plot([Configuration(name, one.runs) for name in names])
    root = ElementTree.fromstring(svg)
    labels = [e for e in root.iter(f"{NAME}text") if e.get("class") == "label"]
    assert [e.text for e in labels] == names
    ends = {}  # in each row
    for e in labels:
        assert float(e.get("x")) - 34 >= ends.get(e.get("y"), 0)
        ends[e.get("y")] = float(e.get("x")) + 6.5 * len(e.text)
    assert max(ends.values()) < 640 and len(ends) > 3
    assert float(root.get("viewBox").split()[3]) > max(map(float, ends))


def test_a_plot_of_what_is_there(tmp_path):
    bare = write_stream(tmp_path / "a", "plain", 1, [{"kind": "stage", "stage": 0}])
    assert stage_plot([Configuration("bare", (read_run(bare),))]) == ""
    one = write_stream(tmp_path / "b", "plain", 1, stage_records("plain", 1, 1))
    configurations = [Configuration(n, (read_run(p),)) for n, p in (("bare", bare), ("one", one))]
    root = ElementTree.fromstring(stage_plot(configurations))
    assert [e.text for e in root.iter(f"{NAME}text") if e.get("class") == "label"] == ["one"]
