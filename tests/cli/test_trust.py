"""Run folders from strangers on the command line: nothing that they name is run, shown or followed blindly."""

import errno
import html.parser
import importlib.util
import json
import os
import py_compile
import resource
import shlex
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from growthring.checkpoint import RunLock, list_checkpoints
from growthring.cli import main
from growthring.cli.trust import recipe_source, trusted_recipe
from growthring.errors import InputError
from growthring.train import Silence, Trainer
from tests.cli.commands import OWN, TINY, run
from tests.train.runs import assert_same_run, in_child, small

EVIL = "\x1b]0;owned\x07<script>alert(1)</script>\u202e\x00\ud800'\"&"
MARK = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of a recipe in a file, which leaves a mark when it is run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "my_recipes.py").write_text(MARK + OWN)
    arguments = ["--recipe", f"{folder / 'my_recipes.py'}:mine", "--out", str(folder / "run")]
    assert main(["train", *arguments, "--quiet"]) == 0
    (folder / "my_recipes.ran").unlink()
    return folder


@pytest.fixture
def theirs(finished, tmp_path):
    """A copy of it, as it comes from somebody else; (folder of the run, recipe, what shows that it was run)."""
    folder = Path(shutil.copytree(finished, tmp_path / "theirs"))
    recipe = folder / "my_recipes.py"
    put(folder / "run", "source.recipe", f"{recipe}:mine")
    return folder / "run", f"{recipe}:mine", recipe.with_suffix(".ran")


def put(folder: Path, path: str, value: object) -> None:
    """Sets a field of config.json and forgets the copy of it in the checkpoints, as a stranger would."""
    config = json.loads((folder / "config.json").read_text())
    place = config
    *parents, last = path.split(".")
    for key in parents:
        place = place[key]
    place[last] = value
    (folder / "config.json").write_text(json.dumps(config))
    from growthring.checkpoint import read_checkpoint, write_checkpoint

    found = read_checkpoint(folder)
    write_checkpoint(folder, {**found.state, "config": config}, found.step)


def refused(capsys, *arguments):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "") and "Traceback" not in err and "\x1b" not in err, err
    return err


# Whose code is run.


def test_a_folder_does_not_choose_what_is_run(theirs, capsys):
    folder, recipe, ran = theirs
    err = refused(capsys, "train", "--resume", folder)
    assert "runs that file" in err and "--trust" in err
    assert f"growthring train --resume {folder} --recipe {recipe}" in err
    assert not ran.exists()


@pytest.mark.parametrize("how", ["named", "named from elsewhere", "trusted"])
@pytest.mark.each(4)
def test_what_the_user_names_is_run(how, theirs, capsys, tmp_path, monkeypatch):
    folder, recipe, ran = theirs
    if how == "named from elsewhere":  # the same file in another place
        shutil.copy(recipe.removesuffix(":mine"), tmp_path / "my_recipes.py")
        monkeypatch.chdir(tmp_path)
        recipe, ran = "my_recipes.py:mine", tmp_path / "my_recipes.ran"
    more = ["--trust"] if how == "trusted" else ["--recipe", recipe]
    status, _, err = run(capsys, "train", "--resume", folder, *more)
    assert status == 0 and ran.exists() and "has changed" not in err, err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("other.py:mine", "was trained with the recipe 'my_recipes.py:mine', not with"),
        ("my_recipes.py:other", "not with 'my_recipes.py:other'"),
        ("demo", "not with 'demo'"),
        ("no/my_recipes.py:mine", "there is no file 'no/my_recipes.py'"),
    ],
)
def test_another_recipe_is_not_run(given, says, theirs, capsys):
    folder, _, ran = theirs
    assert says in refused(capsys, "train", "--resume", folder, "--recipe", given)
    assert not ran.exists()


def test_a_recipe_that_has_changed(theirs, capsys):
    folder, recipe, ran = theirs
    file = Path(recipe.removesuffix(":mine"))
    file.write_text(file.read_text() + "\n# another line\n")
    err = refused(capsys, "train", "--resume", folder, "--recipe", recipe)
    assert "has changed since the run" in err and "SHA-256" in err and "--trust" in err
    assert not ran.exists()
    for more in (["--recipe", recipe, "--trust"], ["--trust"]):
        status, _, err = run(capsys, "train", "--resume", folder, *more)
        assert status == 0 and "has changed since the run began; going on" in err and ran.exists()


def test_a_run_of_before_has_no_checksum(theirs, capsys):
    folder, recipe, ran = theirs
    config = json.loads((folder / "config.json").read_text())
    put(folder, "source", {k: v for k, v in config["source"].items() if k != "sha256"})
    refused(capsys, "train", "--resume", folder)
    assert not ran.exists()
    assert run(capsys, "train", "--resume", folder, "--recipe", recipe, "--quiet")[0] == 0


def test_a_cache_beside_the_recipe_is_not_run(theirs, capsys):
    """The user has read the file; a .pyc beside it may say something else."""
    folder, recipe, ran = theirs
    file = Path(recipe.removesuffix(":mine"))
    evil = file.with_name("evil.py")
    evil.write_text(
        f"import pathlib; pathlib.Path({str(ran)!r}).with_suffix('.evil').touch()\n" + OWN
    )
    cache = importlib.util.cache_from_source(str(file))
    Path(cache).parent.mkdir(exist_ok=True)
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(evil), cache, invalidation_mode=unchecked)
    assert run(capsys, "train", "--resume", folder, "--recipe", recipe, "--quiet")[0] == 0
    assert ran.exists() and not ran.with_suffix(".evil").exists()


@pytest.mark.parametrize(
    "recipe", ["os:system", "evil", "/bin/sh", "a.py:", ":f", "http://x/a.py", EVIL]
)
def test_recipes_that_are_none(recipe, theirs, capsys):
    folder, _, ran = theirs
    put(folder, "source.recipe", recipe)
    err = refused(capsys, "train", "--resume", folder, "--trust")
    assert "source.recipe" in err and "allowed is" in err and not ran.exists()


@pytest.mark.slow
def test_recipes_of_growthring_need_nothing(capsys, tmp_path):
    folder = tmp_path / "run"
    assert run(capsys, "train", *TINY, "--out", folder, "--quiet")[0] == 0
    assert run(capsys, "train", "--resume", folder, "--quiet")[0] == 0
    assert trusted_recipe(folder, {"recipe": "demo"}, "demo", False) == ("demo", [])
    assert "was trained with the recipe 'demo'" in refused(
        capsys, "train", "--resume", folder, "--recipe", "cifar10-vgg11"
    )
    err = refused(capsys, "train", "--resume", folder, "--out", tmp_path / "other")
    assert "--out or --resume" in err
    for flag in ("--trust", "--forget-metrics"):
        assert "is for --resume" in refused(capsys, "train", *TINY, "--out", tmp_path / "b", flag)


def damage_lock(folder):
    lock = RunLock(folder)
    lock.acquire()
    return lock


DAMAGE = {
    "config": (
        lambda f: put(f, "settings.epochs", "many"),
        "'settings.epochs' is 'many'; allowed is int",
    ),
    "an absolute path": (lambda f: put(f, "source.data", "/etc\0/passwd"), "'source.data'"),
    "checkpoints": (lambda f: shutil.rmtree(f / "checkpoints"), "there is no checkpoint"),
    "a checkpoint": (
        lambda f: [os.truncate(p / "tensors.safetensors", 9) for _, p in list_checkpoints(f)],
        "can be used",
    ),
    "lock": (damage_lock, "works on the run"),
    "metrics": (lambda f: os.truncate(f / "metrics.jsonl", 50), "was shortened"),
    "a link": (
        lambda f: [(f / "metrics.jsonl").unlink(), (f / "metrics.jsonl").symlink_to(f)],
        "metrics.jsonl",
    ),
    "data": (lambda f: put(f, "settings.data", "nothing"), "there is no data set 'nothing'"),
    "their data": (
        lambda f: [put(f, "settings.data", "npz"), put(f, "source.data", "/dev/zero")],
        "/dev/zero: not a .npz",
    ),
    "images": (lambda f: put(f, "settings.input_shape", [3, 8, 8]), "the recipe expects (3, 8, 8)"),
    "a fifo": (
        lambda f: [(f / "config.json").unlink(), os.mkfifo(f / "config.json")],
        "config.json",
    ),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGE.values(), ids=DAMAGE.keys())
def test_all_else_is_checked_before_anything_is_run(damage, says, theirs, capsys):
    folder, _, ran = theirs
    held = damage(folder)
    err = refused(capsys, "train", "--resume", folder, "--trust")
    assert says in err and not ran.exists(), err
    if isinstance(held, RunLock):
        held.release()


def test_a_shortened_log(theirs, capsys):
    folder, _, _ = theirs
    log = folder / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:100])
    err = refused(capsys, "train", "--resume", folder, "--trust")
    assert "was shortened" in err and "--forget-metrics" in err and log.stat().st_size == 100
    status, _, _ = run(
        capsys, "train", "--resume", folder, "--trust", "--forget-metrics", "--quiet"
    )
    assert status == 0 and (folder / "metrics.damaged-1.jsonl").stat().st_size == 100


def test_reading_runs_nothing(theirs, capsys, tmp_path, monkeypatch):
    """report, export and compare --table; `change` in a recipe's file would be seen by the mark."""
    folder, _, ran = theirs
    before = set(sys.modules)
    assert run(capsys, "report", folder, "--out", tmp_path / "page.html")[0] == 0
    assert run(capsys, "export", folder, tmp_path / "a.safetensors")[0] == 0
    (folder / "result.json").unlink()
    assert run(capsys, "export", folder, tmp_path / "b.safetensors", "--partial")[0] == 0
    err = refused(capsys, "export", folder, tmp_path / "c.safetensors")
    assert f"growthring train --resume {folder} --recipe" in err
    assert not ran.exists() and "my_recipes" not in set(sys.modules) - before


def test_the_help_says_so(capsys):
    _, out, _ = run(capsys, "train", "--help")
    text = " ".join(out.split())
    assert "--trust" in text and "--resume runs/mine --recipe my_file.py:my_recipe" in text
    assert "must not choose what runs on your machine" in text


def test_what_ctrl_c_says_works(finished, capsys, monkeypatch, tmp_path):
    folder = tmp_path / "a run"
    recipe = f"{finished / 'my_recipes.py'}:mine"

    def step(progress, status):
        if status.step == 5:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("growthring.train.progress.Silence.step", step)
        status, _, err = run(capsys, "train", "--recipe", recipe, "--out", folder, "--quiet")
    assert status == 130 and "Traceback" not in err
    command = err.splitlines()[-1].partition("Go on with: ")[2]
    name, *rest = shlex.split(command)
    assert name == "growthring" and run(capsys, *rest, "--quiet")[0] == 0
    assert_same_run(finished / "run", folder)


def test_names_of_recipes(tmp_path):
    """Without a run: what is compared is the name and the content."""
    file = tmp_path / "mine.py"
    file.write_text("")
    source = recipe_source(f"{file}:f")
    assert trusted_recipe(tmp_path, source, f"{file}:f", False) == (f"{file}:f", [])
    assert recipe_source("demo") == {"recipe": "demo"}
    with pytest.raises(InputError, match="is not a regular file"):
        os.mkfifo(tmp_path / "fifo.py")
        recipe_source(f"{tmp_path / 'fifo.py'}:f")


# What is shown.


@pytest.fixture
def evil(tmp_path):
    """A run whose every text is hostile."""
    folder = tmp_path / "evil"
    folder.mkdir()
    config = {
        "name": EVIL,
        "fixed": False,
        "seed": EVIL,
        "settings": {EVIL: EVIL, "name": EVIL, "data": EVIL, "model": EVIL, "lr": {EVIL: [EVIL]}},
        "plan": {
            "widths": [{EVIL: 4}],
            "notes": [EVIL],
            "epochs": [1],
            "flops": [1.0],
            "parameters": [3],
        },
        "source": {"recipe": EVIL},
        "machine": EVIL,
        "versions": {EVIL: EVIL},
    }
    (folder / "config.json").write_text(json.dumps(config))
    lines = [
        {
            "kind": "epoch",
            "epoch": 0,
            "stage": 0,
            "step": 3,
            "train_loss": 1.0,
            "test_accuracy": 0.5,
        },
        {"kind": "growth", "stage": EVIL, "step": EVIL, "widths": {EVIL: EVIL}},
        {"kind": "rates", "step": 3, "factors": {EVIL: [1.0, 0.5], "b": EVIL}},
        {"kind": EVIL, EVIL: EVIL},
        {"kind": "epoch", "epoch": EVIL, "stage": EVIL, "train_loss": EVIL},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "result.json").write_text(json.dumps({"test_accuracy": EVIL, "flops": EVIL, EVIL: 1}))
    return folder


class Page(html.parser.HTMLParser):
    """What a browser would run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts, self.handlers = 0, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        self.handlers += [k for k, v in attrs if k.startswith("on") or "javascript:" in (v or "")]
        assert tag not in ("iframe", "object", "embed", "link", "base", "form"), tag


def test_a_report_runs_nothing_of_a_run(evil, finished, capsys, tmp_path):
    page = tmp_path / "page.html"
    status, out, err = run(capsys, "report", evil, finished / "run", "--out", page)
    assert status == 0 and "\x1b" not in out + err and "mine, grown" in out
    found = Page(page.read_text())
    assert found.scripts == 1 and not found.handlers and "<script>alert" not in page.read_text()
    status, out, _ = run(capsys, "report", evil, "--out", page, "--json")
    assert status == 0 and json.loads(out) and "\x1b" not in out


def test_messages_do_not_steer_the_terminal(theirs, capsys):
    folder, _, _ = theirs
    for path in ("source.sha256", "settings.epochs", "versions.torch"):  # the last is checked first
        put(folder, path, [EVIL])
        assert path in refused(capsys, "train", "--resume", folder)
    (folder / "config.json").write_text(json.dumps({EVIL: 1}))
    refused(capsys, "train", "--resume", folder)
    refused(capsys, "export", folder / EVIL.replace("\0", "").replace("/", ""), "file")


# Damaged runs beside whole ones.


DAMAGED = {
    "no config": (lambda f: (f / "config.json").unlink(), "It has no config.json"),
    "config": (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
    "deep config": (lambda f: (f / "config.json").write_text("[" * 10**5), "nested too deep"),
    "no metrics": (lambda f: (f / "metrics.jsonl").unlink(), "It has no metrics.jsonl"),
    "metrics": (
        lambda f: (f / "metrics.jsonl").write_bytes(b"\xff\n" * 3),
        "3 lines are unreadable",
    ),
    "a fifo": (
        lambda f: [(f / "metrics.jsonl").unlink(), os.mkfifo(f / "metrics.jsonl")],
        "metrics.jsonl cannot be read (it is not a regular file)",
    ),
    "result": (lambda f: (f / "result.json").write_text("[1"), "result.json cannot be read"),
    "a device": (
        lambda f: [(f / "result.json").unlink(), (f / "result.json").symlink_to("/dev/zero")],
        "result.json cannot be read (it is not a regular file)",
    ),
    "too large": (lambda f: os.truncate(f / "config.json", 1 << 27), "more than the"),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGED.values(), ids=DAMAGED.keys())
def test_report_names_damaged_runs_and_shows_the_others(damage, says, finished, capsys, tmp_path):
    bad = Path(shutil.copytree(finished / "run", tmp_path / "bad"))
    damage(bad)
    page = tmp_path / "page.html"
    status, out, err = run(capsys, "report", bad, finished / "run", "--out", page)
    assert status == 0 and "mine, grown" in out and "Traceback" not in err
    assert f"'{bad}' is damaged: " in err and says in err and says.split("(")[0] in page.read_text()


# Comparisons.


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    (folder / "my_recipes.py").write_text(MARK + OWN)
    arguments = ["--recipe", f"{folder / 'my_recipes.py'}:mine", "--out", str(folder / "out")]
    more = ["--methods", "paired", "--seeds", "1", "--clock", "cpu", "--quiet"]
    assert main(["compare", *arguments, *more]) == 0
    (folder / "my_recipes.ran").unlink()
    return folder


@pytest.fixture
def comparison(compared, tmp_path):
    return Path(shutil.copytree(compared / "out", tmp_path / "out"))


def entry(**changes):
    whole = {"settings": [], "text": "", "seeds": 1, "epochs": 3, "fixed": False, "grows": True}
    return whole | changes


MANIFESTS = {
    "a path as a name": ("contenders", {"../../evil": entry()}, "it is the name of a folder"),
    "an absolute path": ("contenders", {"/tmp/evil": entry()}, "it is the name of a folder"),
    "a tag as a name": ("contenders", {EVIL: entry()}, "it is the name of a folder"),
    "no seeds": ("contenders", {"a": entry(seeds=0)}, "'contenders.a.seeds' is 0; allowed is"),
    "endless seeds": ("contenders", {"a": entry(seeds=10**18)}, "from 1 to 10,000"),
    "seeds as text": ("contenders", {"a": entry(seeds="1")}, "'contenders.a.seeds' is '1'"),
    "epochs": ("contenders", {"a": entry(epochs=10**18)}, "'contenders.a.epochs'"),
    "settings": ("contenders", {"a": entry(settings="x")}, "'contenders.a.settings'"),
    "more fields": ("contenders", {"a": entry(more=1)}, "and no more"),
    "a list": ("contenders", [], "'contenders' is []"),
    "another match": ("match", "nobody", "'match' is 'nobody'; allowed is null, or one of"),
    "another clock": ("clock", "sun", "'clock' is 'sun'; allowed is one of wall, cpu"),
    "runs elsewhere": (
        "decisions",
        {"fixed-flops": {"epochs": 1, "share": 0.5, "of": "paired", "runs": "../../evil"}},
        "'decisions.fixed-flops.runs' is '../../evil'",
    ),
    "a share of nothing": (
        "decisions",
        {"fixed-flops": {"epochs": 1, "share": float("nan"), "of": "paired", "runs": "fixed"}},
        "'decisions.fixed-flops.share' is nan",
    ),
    "settings of none": ("settings", {"name": "x"}, "'settings.epochs' is None"),
    "epochs of none": ("settings", {"epochs": "3"}, "'settings.epochs' is '3'"),
    "a machine": ("machine", 3, "'machine' is 3"),
    "changes": ("changes", {"a": 1}, "'changes'"),
    "unknown": ("unknown", 1, "and no more"),
}


@pytest.mark.parametrize(("key", "value", "says"), MANIFESTS.values(), ids=MANIFESTS.keys())
@pytest.mark.each(6)
def test_a_manifest_that_no_comparison_writes(key, value, says, comparison, compared, capsys):
    path = comparison / "comparison.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    before = path.read_bytes()
    assert says in refused(capsys, "compare", "--table", "--out", comparison)
    recipe = f"{compared / 'my_recipes.py'}:mine"
    assert says in refused(
        capsys, "compare", "--recipe", recipe, "--methods", "paired", "--out", comparison
    )
    assert path.read_bytes() == before


def test_the_table_runs_nothing_and_shows_nothing_odd(comparison, compared, capsys):
    (compared / "my_recipes.ran").unlink(missing_ok=True)
    path = comparison / "comparison.json"
    found = json.loads(path.read_text())
    found |= {"recipe": EVIL, "machine": EVIL, "changes": [EVIL]}
    found["settings"]["name"] = EVIL
    found["contenders"]["paired"]["text"] = EVIL
    path.write_text(json.dumps(found))
    (comparison / "paired" / "seed-0" / "result.json").unlink()
    (comparison / "paired" / "seed-0" / "failed.json").write_text(json.dumps({"message": EVIL}))
    status, out, err = run(capsys, "compare", "--table", "--out", comparison)
    assert status == 0 and "\x1b" not in out + err and "failed" in out
    page = Page((comparison / "report.html").read_text())
    assert page.scripts == 1 and not page.handlers
    for name in ("table.md", "accuracy-cost.svg", "report.html"):
        assert "<script>alert" not in (comparison / name).read_text()
    assert not (compared / "my_recipes.ran").exists()


RESULTS = {
    "cut": "{",
    "empty": "",
    "a list": "[]",
    "texts": '{"flops": "many"}',
    "not a number": '{"flops": NaN, "seconds": 1}',
    "an accuracy above 1": '{"test_accuracy": 97, "flops": 1, "seconds": 1}',
}


@pytest.mark.parametrize("content", RESULTS.values(), ids=RESULTS.keys())
@pytest.mark.each(3)
def test_a_damaged_result_is_named_and_the_others_are_shown(content, comparison, capsys):
    (comparison / "paired" / "seed-0" / "result.json").write_text(content)
    status, out, _ = run(capsys, "compare", "--table", "--out", comparison)
    assert status == 0 and "damaged: paired/seed-0/result.json" in out
    assert out.splitlines()[1].split()[:2] == ["fixed", "3"]


def test_a_damaged_result_is_made_again(comparison, compared, capsys):
    folder = comparison / "paired" / "seed-0"
    before = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text("{")
    arguments = ["--recipe", f"{compared / 'my_recipes.py'}:mine", "--out", comparison]
    more = ["--methods", "paired", "--seeds", "1", "--clock", "cpu"]
    status, out, err = run(capsys, "compare", *arguments, *more)
    assert status == 0 and "finishing the run again" in err and "damaged:" not in out
    after = json.loads((folder / "result.json").read_text())
    assert before["test_accuracy"] == after["test_accuracy"] and before["flops"] == after["flops"]
    shutil.rmtree(folder / "checkpoints")  # one that cannot be made again fails alone
    (folder / "result.json").write_text("{")
    status, out, err = run(capsys, "compare", *arguments, *more)
    assert status == 0 and "there is no checkpoint" in err


# Interrupts, disks, data.


@pytest.fixture
def own(finished):
    return ["--recipe", f"{finished / 'my_recipes.py'}:mine"]


@pytest.mark.parametrize("moment", ["make_model", "make_streams", "make_plan", "make_optimizer"])
def test_ctrl_c_before_the_run_leaves_no_folder(moment, own, capsys, monkeypatch, tmp_path):
    def press(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"growthring.train.parts.{moment}", press)
    status, out, err = run(capsys, "train", *own, "--out", tmp_path / "run", "--quiet")
    assert (status, out, err) == (130, "", "growthring: interrupted\n")
    assert not (tmp_path / "run").exists()


def test_a_limit_on_the_size_of_files(finished, tmp_path):
    """The kernel refuses in the middle of the first checkpoint."""
    recipe = f"{finished / 'my_recipes.py'}:mine"

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        with (tmp_path / "said").open("w") as file:
            sys.stderr = file
            status = main(["train", "--recipe", recipe, "--out", str(tmp_path / "run"), "--quiet"])
        assert status == 2

    assert in_child(work) == 0
    text = (tmp_path / "said").read_text()
    assert "cannot write" in text and "File too large" in text and "Traceback" not in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_cannot_be_made(code, own, capsys, monkeypatch, tmp_path):
    real = os.mkdir

    def mkdir(path, *args, **kwargs):
        if str(path) == str(tmp_path / "run"):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "mkdir", mkdir)
    err = refused(capsys, "train", *own, "--out", tmp_path / "run", "--quiet")
    assert os.strerror(code) in err and str(tmp_path / "run") in err


def test_a_file_in_place_of_the_folder(own, capsys, tmp_path):
    (tmp_path / "run").write_text("mine")
    err = refused(capsys, "train", *own, "--out", tmp_path / "run", "--quiet")
    assert str(tmp_path / "run") in err and (tmp_path / "run").read_text() == "mine"


def test_an_error_of_the_system_is_no_traceback(own, capsys, monkeypatch, tmp_path):
    def fail(*args, **kwargs):
        raise OSError(errno.EIO, os.strerror(errno.EIO), "/some/where")

    monkeypatch.setattr("growthring.train.parts.make_plan", fail)
    err = refused(capsys, "train", *own, "--out", tmp_path / "run", "--quiet")
    assert "OSError: Input/output error ('/some/where')." in err


def test_labels_beyond_the_outputs_are_found_before_there_is_a_folder(finished, capsys, tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (100, 8, 8), dtype=np.uint8)
    labels = np.arange(100) % 11
    path = tmp_path / "mine.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    arguments = [
        "--recipe",
        f"{finished / 'my_recipes.py'}:mine",
        "--set",
        "data=npz",
        "--data",
        path,
    ]
    err = refused(capsys, "train", *arguments, "--out", tmp_path / "run")
    assert "has the label 10, but the model has 10 outputs" in err
    assert not (tmp_path / "run").exists()


def test_a_run_of_the_library_cannot_be_made_to_run_a_file(capsys, tmp_path):
    """Its source is empty; the command says where to resume it."""
    Trainer(small(), tmp_path / "run", progress=Silence()).fit()
    assert "not started by this command" in refused(capsys, "train", "--resume", tmp_path / "run")
