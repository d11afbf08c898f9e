"""Export of word lattices and their oracle, by the command."""

import pytest
from click.testing import CliRunner

from tests.decode.test_combine import write_lattices
from toolkit import cli


@pytest.fixture
def decoded(tmp_path):
    (tmp_path / "dev/word_lattices").mkdir(parents=True)
    found = {"a-1": {"ONE TWO": 0.6, "TWO THREE": 0.4}, "../b-1": {"TWO": 1.0}, "c": {}}
    return write_lattices(tmp_path / "dev", found)


def run(*arguments):
    result = CliRunner().invoke(cli.main, ["lattice", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("form", "files"),
    [
        ("kaldi", {"lat.txt", "words.txt"}),
        ("slf", {"a-1.lat", "b-1.lat"}),
        ("openfst", {"a-1.fst.txt", "b-1.fst.txt", "words.txt"}),
    ],
)
def test_files_of_each_format(decoded, tmp_path, form, files):
    out = tmp_path / "out" / form
    assert "2 lattices" in run("export", decoded, "--format", form, "--out", out)
    assert {path.name for path in out.iterdir()} == files
    if "words.txt" in files:
        assert (out / "words.txt").read_text().splitlines()[0] == "<eps> 0"
    if form == "kaldi":
        keys = [line for line in (out / "lat.txt").read_text().split("\n") if line.endswith(" ")]
        assert keys == ["a-1 ", "../b-1 "]


def test_the_oracle_chooses_the_best_words_of_all(decoded, tmp_path):
    (tmp_path / "ref").write_text("a-1 ONE THREE\n../b-1 TWO\n")
    lines = run("oracle", decoded, "--ref", tmp_path / "ref").splitlines()
    assert lines[0].startswith("%WER 33.33 [ 1 / 3, ")
    assert lines[1].startswith("2 lattices, ")
    (tmp_path / "ref").write_text("a-1 TWO THREE\n../b-1 TWO ONE\n")
    lines = run("oracle", decoded / "word_lattices", "--ref", tmp_path / "ref").splitlines()
    assert lines[0].startswith("%WER 25.00 [ 1 / 4, 0 ins, 1 del, ")


def test_what_was_exported_for_kaldi_is_imported(decoded, tmp_path):
    run("export", decoded, "--out", tmp_path / "out")
    names = [tmp_path / "out/lat.txt", "--words", tmp_path / "out/words.txt"]
    scale = ["--acoustic-scale", 1]
    shown = run("import", *names, *scale, "--out", tmp_path / "again")
    assert "2 lattices" in shown
    (tmp_path / "ref").write_text("a-1 TWO THREE\n../b-1 TWO ONE\n")
    before, after = (
        run("oracle", folder, "--ref", tmp_path / "ref").splitlines()[0]
        for folder in (decoded, tmp_path / "again")
    )
    assert before == after
    arguments = ["lattice", "import", *names, names[0], "--out", tmp_path / "twice"]
    done = CliRunner().invoke(cli.main, list(map(str, arguments)))
    assert "'a-1' occurs twice" in done.output
    (tmp_path / "out/words.txt").write_text("<eps> 0\n")
    arguments = ["lattice", "import", *names, "--out", tmp_path / "none"]
    done = CliRunner().invoke(cli.main, list(map(str, arguments)))
    assert "has no word" in done.output


@pytest.mark.parametrize("shift", ["0", "-10"])
def test_an_import_needs_time_that_passes(decoded, tmp_path, shift):
    run("export", decoded, "--out", tmp_path)
    words = ["--words", str(tmp_path / "words.txt"), "--out", str(tmp_path / "again")]
    arguments = ["lattice", "import", str(tmp_path / "lat.txt"), *words, "--frame-shift", shift]
    assert CliRunner().invoke(cli.main, arguments).exit_code == 2


def test_an_import_leaves_nothing_of_an_earlier_one(decoded, tmp_path):
    run("export", decoded, "--out", tmp_path / "out")
    both = (tmp_path / "out/lat.txt").read_text().split("\n\n")
    paths = [tmp_path / "lat.1", tmp_path / "lat.2"]
    for path, lattice in zip(paths, both, strict=False):
        path.write_text(f"{lattice}\n\n")
    words = ["--words", tmp_path / "out/words.txt", "--out", tmp_path / "again"]
    assert "2 lattices" in run("import", *paths, *words)
    assert "1 lattices" in run("import", paths[0], *words)
    name = both[0].split()[0]
    (tmp_path / "ref").write_text(f"{name} TWO\n")
    assert "\n1 lattices, " in run("oracle", tmp_path / "again", "--ref", tmp_path / "ref")


def test_nothing_to_import_or_to_compare_is_an_error(decoded, tmp_path):
    (tmp_path / "lat.txt").write_text("")
    (tmp_path / "words.txt").write_text("<eps> 0\n")
    (tmp_path / "ref").write_text("other-1 ONE\n")
    archive, out = str(tmp_path / "lat.txt"), str(tmp_path / "out")
    words = ["--words", str(tmp_path / "words.txt")]
    done = CliRunner().invoke(cli.main, ["lattice", "import", archive, *words, "--out", out])
    assert (done.exit_code, done.stderr) == (1, f"Error: no lattice with a path in {archive}\n")
    reference = ["--ref", str(tmp_path / "ref")]
    done = CliRunner().invoke(cli.main, ["lattice", "oracle", str(decoded), *reference])
    assert done.exit_code == 1
    assert f"{decoded} has no lattice of an utterance in {tmp_path / 'ref'}" in done.stderr
