"""growthring translate: sentences, standard input, exported files, and what cannot be translated."""

import io
import json
import re
import sys

import pytest

import growthring.cli.translate as translate_module
from growthring.train import Silence, Trainer, change
from tests.cli.commands import run
from tests.train.runs import Killer, small, translation
from tests.train.test_resume import Stop, stop

LINES = ["einundzwanzig", "", "vier", "  neunhunderteins ", "zwei ☂", "sechs", "\t"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translate") / "run"
    Trainer(translation("fixed=true", "epochs=2"), folder, progress=Silence()).fit()
    return folder


@pytest.fixture(scope="module")
def expected(trained):
    """Each line translated alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translate_module, "_LINES", 1)
        return piped(patch, trained, "\n".join(LINES).encode())


def piped(monkeypatch, *arguments):
    """The lines that the command prints for what is piped into it."""
    *arguments, content = arguments
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    monkeypatch.setattr(sys, "stdout", out)
    status = translate_module_main(["translate", *map(str, arguments)])
    assert status == 0
    return out.getvalue().split("\n")[:-1]


def translate_module_main(arguments):
    from growthring.cli import main

    return main(arguments)


def test_a_translation_a_line_and_an_empty_one_for_an_empty_one(expected):
    assert len(expected) == len(LINES)
    assert [bool(line) for line in expected] == [bool(line.strip()) for line in LINES]


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("lines", [2, 256])
def test_many_lines_come_in_their_order(lines, ends, trained, expected, monkeypatch):
    monkeypatch.setattr(translate_module, "_LINES", lines)
    for content in (ends.join(LINES), ends.join(LINES) + ends, "\ufeff" + ends.join(LINES)):
        assert piped(monkeypatch, trained, content.encode()) == expected


def test_lines_are_printed_before_all_are_read(trained, monkeypatch):
    """An endless stream: the first lines are translated when so many are there."""
    seen = []

    class Source(io.StringIO):
        def __next__(self):
            seen.append(sys.stdout.getvalue().count("\n"))
            return super().__next__()

    monkeypatch.setattr(translate_module, "_LINES", 2)
    monkeypatch.setattr(sys, "stdin", Source("zwei\n" * 5))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert translate_module_main(["translate", str(trained)]) == 0
    assert seen[:5] == [0, 0, 2, 2, 4]


def test_sentences_as_arguments_and_as_json(trained, expected, capsys):
    status, out, err = run(capsys, "translate", trained, *LINES)
    assert (status, out.split("\n")[:-1], err) == (0, expected, "")
    status, out, _ = run(capsys, "translate", trained, *LINES, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["source"] for row in rows] == LINES
    assert [row["translation"] for row in rows] == expected


def test_sentences_stand_before_and_behind_options(trained, expected, capsys):
    status, out, _ = run(capsys, "translate", trained, LINES[0], "--beam", 1, *LINES[1:])
    assert (status, out.split("\n")[:-1]) == (0, expected)
    status, _, err = run(capsys, "translate", trained, *LINES, "--bogus", "eins")
    assert status == 2 and "unrecognized arguments: --bogus eins" in err


def test_options_of_the_search(trained, expected, capsys):
    """The run was trained with beam 1."""
    assert run(capsys, "translate", trained, *LINES, "--beam", 1)[1].split("\n")[:-1] == expected
    status, out, _ = run(capsys, "translate", trained, *LINES, "--beam", 3, "--length-penalty", 0)
    assert status == 0 and len(out.split("\n")) == len(LINES) + 1
    for flag, value, words in (
        ("--beam", 0, "task_options.beam=0: it is at least 1"),
        ("--length-penalty", 99, "task_options.length_penalty=99.0: it is from -10 to 10"),
        ("--device", "quantum", "device 'quantum' cannot be used"),
    ):
        status, out, err = run(capsys, "translate", trained, "zwei", flag, value)
        assert (status, out) == (2, "") and words in err


def test_a_sentence_that_is_too_long(trained, expected, capsys, monkeypatch):
    words = r"sentence 2 has \d+ tokens \('drei drei .*…'\), the model was trained for up to 15. Split it, or "
    status, out, err = run(capsys, "translate", trained, LINES[0], "drei " * 40)
    assert (status, out) == (2, "") and re.search(words + "pass --cut", err)
    status, out, _ = run(capsys, "translate", trained, LINES[0], "drei " * 40, "--cut")
    assert status == 0 and out.split("\n")[0] == expected[0]
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{LINES[0]}\n{'drei ' * 40}\nvier\n"))
    status, out, err = run(capsys, "translate", trained)  # of a stream, what came before is there
    assert (status, out) == (2, expected[0] + "\n") and re.search(words, err)


def test_what_is_not_utf8(trained, capsys, monkeypatch):
    status, out, err = run(capsys, "translate", trained, "zwei", "k\udcfchl")
    assert (status, out) == (2, "") and "sentence 2 is not UTF-8 ('k?hl')" in err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("kühl\n".encode("latin-1"))))
    status, out, err = run(capsys, "translate", trained)
    assert (status, out) == (2, "") and "standard input is not UTF-8" in err and "iconv" in err


def test_nothing_on_standard_input(trained, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run(capsys, "translate", trained) == (0, "", "")


def test_an_exported_file_with_its_vocabulary_beside_it(trained, expected, capsys, tmp_path):
    file = tmp_path / "model.safetensors"
    status, out, _ = run(capsys, "export", trained, file)
    beside = tmp_path / "model.vocabulary.json"
    assert (
        status == 0
        and f"wrote {file} and {beside}" in out
        and "made with: vocabulary.json" in " ".join(out.split())
    )
    assert run(capsys, "translate", file, *LINES)[1].split("\n")[:-1] == expected
    status, out, err = run(capsys, "eval", file)
    assert status == 0 and "test perplexity" in out and "the same" in out
    content = beside.read_text()
    beside.write_text(content.replace("}", "} ", 1))
    status, out, err = run(capsys, "translate", file, "zwei")
    assert (status, out) == (2, "") and "is from another run" in err
    beside.rename(tmp_path / "elsewhere.json")
    for command in ("translate", "eval"):
        status, out, err = run(capsys, command, file)
        assert (
            (status, out) == (2, "")
            and "needs its vocabulary.json" in err
            and "Copy it from" in err
        )


def test_what_cannot_translate(trained, capsys, tmp_path):
    status, _, err = run(capsys, "translate", tmp_path / "none", "zwei")
    assert status == 2 and "none" in err
    Trainer(small("fixed=true", "epochs=1"), tmp_path / "images", progress=Silence()).fit()
    status, _, err = run(capsys, "translate", tmp_path / "images", "zwei")
    assert status == 2 and "cannot be made" not in err and "images" in err
    recipe = change(translation("fixed=true", "epochs=2"), {})
    with pytest.raises(Stop):
        Trainer(recipe, tmp_path / "begun", progress=Killer(3, stop), checkpoint_steps=1).fit()
    status, _, err = run(capsys, "translate", tmp_path / "begun", "zwei")
    assert status == 2 and "is not finished. Go on with" in err
