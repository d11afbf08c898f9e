"""`toolkit score`: options for inputs, methods and tables."""

import json

import pytest
from click.testing import CliRunner

from toolkit import cli


def run(*arguments):
    return CliRunner().invoke(cli.main, ["score", *map(str, arguments)])


@pytest.fixture
def files(tmp_path):
    contents = {
        "ref": "a-1 The cat, sat\na-2 <UNK> on the mat\nb-1 so\n",
        "hyp": "a-1 the cat sat\na-2 on mat\n",
        "x.stm": "r 1 ann 0 1 a b\nr 1 bob 1 2 c\n",
        "x.ctm": "r 1 0.1 0.2 a\nr 1 1.2 0.2 c\nq 1 0 1 z\n",
        "x.glm": "cat => feline\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def test_the_output_names_the_normaliser_and_dropped_words(files):
    arguments = ["--ref", files / "ref", "--hyp", files / "hyp", "--drop", "<UNK>"]
    result = run(*arguments, "--normalise", "basic", "--map", files / "x.glm")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "%WER 28.57 [ 2 / 7, 0 ins, 2 del, 0 sub ] [PARTIAL]"
    assert lines[3].startswith("Normaliser: basic-5 without <UNK> mapped by x.glm (sha256 ")
    assert lines[3].endswith("; alignment weights: kaldi")


@pytest.mark.parametrize(
    ("mode", "line"),
    [
        ("all", "%WER 62.50 [ 5 / 8, 0 ins, 3 del, 2 sub ] [PARTIAL]"),
        ("present", "%WER 57.14 [ 4 / 7, 0 ins, 2 del, 2 sub ] [PARTIAL]"),
    ],
)
def test_modes_are_those_of_compute_wer(files, mode, line):
    result = run("--ref", files / "ref", "--hyp", files / "hyp", "--mode", mode)
    assert result.stdout.splitlines()[0] == line
    assert result.stdout.splitlines()[2].endswith("1 not present in hyp.")


def test_strict_mode_ends_with_an_error(files):
    result = run("--ref", files / "ref", "--hyp", files / "hyp", "--mode", "strict")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "1 of 3 utterances have no hypothesis, first 'b-1'" in result.stderr


def test_recordings_are_scored_against_segments_with_tables(files):
    result = run(
        "--ref", files / "x.stm", "--hyp", files / "x.ctm", "--per-speaker", "--per-utterance"
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("%WER 33.33 [ 1 / 3, 0 ins, 1 del, 0 sub ]\n")
    assert "\nann              1       2      1 " in result.stdout
    assert "\nr-1_0001000-0002000\tbob\t1\t1\t0\t0\t0\t0\t0.00\t" in result.stdout
    assert "1 words recognised in q 1" in result.stderr


def test_out_writes_every_file_into_a_folder(files):
    result = run(
        "--ref", files / "ref", "--hyp", files / "hyp", "--speakers", "id", "--out", files / "o"
    )
    assert result.exit_code == 0, result.output
    numbers = json.loads((files / "o/score.json").read_text())
    assert (numbers["errors"], numbers["missing"]) == (5, ["b-1"])
    assert "Sum/Avg" in (files / "o/per_speaker.txt").read_text()


@pytest.mark.parametrize("read", ["--ref", "--hyp", "--map"])
def test_an_input_file_is_never_overwritten(files, read):
    names = {"--ref": "ref", "--hyp": "hyp", "--map": "x.glm"}
    arguments = [part for option, name in names.items() for part in (option, files / name)]
    path = files / names[read]
    content = path.read_bytes()
    result = run(*arguments, "--alignments", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{path} is an input and would be overwritten" in result.stderr
    assert path.read_bytes() == content


def test_a_folder_whose_texts_are_scored_is_not_written_to(files):
    result = run("--ref", files / "ref", "--hyp", files / "hyp", "--out", files / "out")
    assert result.exit_code == 0, result.output
    trn = files / "out/hyp.trn"
    content = trn.read_bytes()
    arguments = ["--ref", files / "ref", "--hyp", trn, "--drop", "cat"]
    result = run(*arguments, "--out", files / "out")
    assert result.exit_code == 2
    assert f"{trn} is an input and would be overwritten" in result.stderr
    assert trn.read_bytes() == content
    assert run(*arguments, "--out", files / "other").exit_code == 0


def test_several_sets_are_scored_separately_and_together(files):
    pair = ["--ref", files / "x.stm", "--hyp", files / "x.ctm"]
    (files / "d").mkdir()
    (files / "d/x.ctm").write_text("r 1 0.1 0.2 a\nr 1 0.5 0.2 b\nr 1 1.2 0.2 c\n")
    result = run(*pair, "--ref", files / "x.stm", "--hyp", files / "d/x.ctm")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:3] == [
        "x.ctm: %WER 33.33 [ 1 / 3, 0 ins, 1 del, 0 sub ]",
        "d/x.ctm: %WER 0.00 [ 0 / 3, 0 ins, 0 del, 0 sub ]",
        "%WER 16.67 [ 1 / 6, 0 ins, 1 del, 0 sub ]",
    ]
    result = run(*pair, "--hyp", files / "d/x.ctm")
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_table_by_speaker_needs_speakers(files):
    out = files / "never"
    result = run("--ref", files / "ref", "--hyp", files / "hyp", "--per-speaker", "--out", out)
    assert "%WER" not in result.output
    assert not out.exists()
    assert result.exit_code == 2
    assert "needs --speakers" in result.stderr


def test_compare_names_its_method_too(files):
    result = run(
        "compare", "--ref", files / "ref", "--hyp", files / "hyp", "--hyp", files / "ref",
        "--normalise", "case", "--weights", "sclite",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Normaliser: case-1; alignment weights: sclite" in result.stdout


def test_scores_as_json(files):
    arguments = ["--ref", files / "ref", "--hyp", files / "hyp", "--speakers", "id", "--json"]
    result = run(*arguments, "--per-utterance", "--per-speaker")
    scores = json.loads(result.stdout)
    assert (scores["errors"], scores["reference_units"]) == (5, 8)
    assert scores["missing"] == ["b-1"]
    assert scores["speakers"]["a"]["utterances"] == 2
    assert scores["by_utterance"]["b-1"]["missing"] is True
    compared = run("compare", *arguments[:4], "--hyp", files / "ref", "--json")
    (comparison,) = json.loads(compared.stdout)
    assert comparison["difference"] == -62.5
    assert comparison["second_file"] == str(files / "ref")
    assert 0 <= comparison["p_value"] <= 1


def test_json_is_not_mixed_with_alignments(files):
    arguments = ["--ref", files / "ref", "--hyp", files / "hyp", "--json", "--alignments"]
    result = run(*arguments, "-")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--json and --alignments cannot both print" in result.stderr
    assert "percent" in json.loads(run(*arguments, files / "standard-output").stdout)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weights", "kaldi"], "--glm needs --weights sclite: leave out --weights kaldi"),
        (["--normalise", "basic"], "--normalise basic removes the hyphens and parentheses that"),
    ],
)
def test_a_glm_excludes_other_options(files, options, message):
    arguments = ["--ref", files / "ref", "--hyp", files / "hyp", "--glm", files / "x.glm"]
    result = run(*arguments, *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert "--weights kaldi" not in run(*arguments, "--weights", "sclite").stderr
    compared = run("compare", *arguments, "--hyp", files / "ref", *options)
    assert compared.exit_code == 2


def test_piped_trn_may_begin_with_brackets_and_braces(files):
    (files / "r.trn").write_text("a c (a-1)\n")
    arguments = ["score", "--ref", str(files / "r.trn"), "--hyp", "-"]
    result = CliRunner().invoke(cli.main, arguments, input="{ a / b } c (a-1)\n")
    assert result.stdout.startswith("%WER 0.00 [ 0 / 2, "), result.output
