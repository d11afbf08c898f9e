import pytest
from click.testing import CliRunner

from toolkit.cli import main


@pytest.fixture
def run(root, monkeypatch):
    monkeypatch.chdir(root)

    def invoke(*arguments):
        return CliRunner().invoke(main, ["new-corpus", *map(str, arguments)])

    return invoke


def test_help_has_an_example(run):
    result = run("--help")
    assert result.exit_code == 0
    assert "toolkit new-corpus interviews --from-csv" in result.output


def test_a_recipe_is_written_and_the_next_commands_are_shown(run, root, corpus):
    result = run("mine", "--from-csv", corpus / "table.csv", "--lexicon", "graphemes")
    assert result.exit_code == 0, result.output
    assert "40 utterances in" in result.output
    assert "wrote recipes/mine/run.py\n" in result.output
    assert "  recipes/mine/run.py --stop-stage 3" in result.output
    again = run("mine", "--from-csv", corpus / "table.csv")
    assert again.exit_code == 1
    assert "Error: the name 'mine' is taken (recipes/mine)" in again.output


def test_the_audio_of_commands_is_stored_in_the_folder_of_pipes(run, corpus, tmp_path):
    data, pipes = tmp_path / "data", tmp_path / "pipes"
    data.mkdir()
    ids = [f"{number:02d}" for number in range(12)]
    (data / "wav.scp").write_text("".join(f"{id} cat {corpus}/{id}.wav |\n" for id in ids))
    (data / "text").write_text("".join(f"{id} the cat\n" for id in ids))
    (data / "utt2spk").write_text("".join(f"{id} s{int(id) % 6}\n" for id in ids))
    (data / "spk2gender").write_text("".join(f"s{number} f\n" for number in range(6)))
    result = run("mine", "--from-kaldi", data, "--pipes", pipes, "--lexicon", "graphemes")
    assert result.exit_code == 0, result.output
    assert len(list(pipes.iterdir())) == 12
    assert "gender" not in result.output
    mapping = f"/home/ann={corpus}"
    assert run("other", "--map-path", mapping).exit_code == 2
    (data / "wav.scp").write_text("".join(f"{id} /home/ann/{id}.wav\n" for id in ids))
    result = run("other", "--from-kaldi", data, "--map-path", mapping, "--lexicon", "graphemes")
    assert result.exit_code == 0, result.output
    result = run("third", "--from-kaldi", data, "--map-path", "/home/ann")
    assert result.exit_code == 2
    assert "is not OLD=NEW" in result.output


def test_missing_speakers_are_clustered_on_request(run, root, corpus):
    table = corpus / "table.csv"
    lines = [line.rpartition(",")[0] for line in table.read_text().splitlines()]
    table.write_text("\n".join(lines) + "\n")
    result = run("mine", "--from-csv", table, "--speakers", "auto", "--lexicon", "graphemes")
    assert result.exit_code == 0, result.output
    assert "40 of 40 utterances name none; stage 2 clusters their recordings" in result.output
    assert 'speakers="auto"' in (root / "recipes/mine/config.py").read_text()
    assert run("other", "--speakers", "auto").exit_code == 2


def test_an_empty_recipe_says_which_reader_to_adapt(run):
    result = run("mine")
    assert result.exit_code == 0, result.output
    assert "adapt local/mine.py to the layout of the corpus" in result.output


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["my-corpus"], 1, "cannot be the name"),
        (["mine", "--from-csv", "no.csv"], 2, "'no.csv' does not exist"),
        (["mine", "--lexicon", "german"], 2, "nor cmudict or graphemes"),
        (["mine", "--from-csv", ".", "--from-kaldi", "."], 2, "give only one of"),
        (["mine", "--from-kaldi", "."], 1, "neither a Kaldi data directory"),
        (["mine", "--from-csv", "."], 1, "is a folder: name the table in it, such as table.csv"),
        (["mine", "--from-kaldi", __file__], 1, "is a file: give --from-kaldi the folder"),
        ([], 2, "Missing argument 'NAME'"),
    ],
)
def test_invalid_arguments_are_errors(run, root, arguments, status, message):
    result = run(*arguments)
    assert result.exit_code == status
    assert message in result.output
    assert not (root / "recipes" / "mine").exists()
