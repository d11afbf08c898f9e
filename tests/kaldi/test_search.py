"""The toolkit's search in graphs of Kaldi; other people's decoders agree in tests/interop."""

import pytest
from click.testing import CliRunner

from toolkit import cli
from toolkit.fsa.fst import GraphError
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.kaldi.graph import export_graph
from toolkit.kaldi.likelihoods import export_likelihoods
from toolkit.kaldi.search import load_graph

TEXTS = {"a": "YES NO", "b": "NO", "É": "NO YES NO"}


@pytest.mark.parametrize("labels", ["pdfs", "transitions"])
def test_the_command_finds_the_words(recogniser, tmp_path, labels):
    pytest.importorskip("kaldi_native_io")
    folder = recogniser.folder
    export_graph(folder / "lang", folder / "lm.arpa", recogniser.senones, tmp_path, labels)
    export_likelihoods(recogniser.scorer(TEXTS), tmp_path)
    command = ["kaldi", "decode", tmp_path / "HCLG.fst", tmp_path / "loglikes.scp"]
    command += ["--words", tmp_path / "words.txt", "--acoustic-scale", 1]
    if labels == "transitions":
        command += ["--model", tmp_path / "0.trans_mdl"]
    done = CliRunner().invoke(cli.main, list(map(str, command)))
    assert done.exit_code == 0, done.output
    assert done.stdout == "a YES NO\nb NO\nÉ NO YES NO\n"
    (tmp_path / "short.ark").write_text("short  [ ]\n")
    command[3] = tmp_path / "short.ark"
    done = CliRunner().invoke(cli.main, list(map(str, command)))
    assert (done.exit_code, done.stdout) == (1, "short\n")
    assert "short: no path survives" in done.stderr
    assert f"Error: {tmp_path / 'short.ark'}: no path of any utterance survives" in done.stderr
    scores = (tmp_path / "loglikes.scp").read_text()
    (tmp_path / "one.scp").write_text(f"short {tmp_path}/short.ark:6\n{scores}")
    command[3] = tmp_path / "one.scp"
    done = CliRunner().invoke(cli.main, list(map(str, command)))
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "short")


def test_transition_ids_without_their_model_are_told(recogniser, tmp_path):
    pytest.importorskip("kaldi_native_io")
    folder = recogniser.folder
    export_graph(folder / "lang", folder / "lm.arpa", recogniser.senones, tmp_path, "transitions")
    export_likelihoods(recogniser.scorer(TEXTS), tmp_path)
    command = ["kaldi", "decode", tmp_path / "HCLG.fst", tmp_path / "loglikes.scp"]
    command += ["--words", tmp_path / "words.txt"]
    done = CliRunner().invoke(cli.main, list(map(str, command)))
    assert done.exit_code == 1
    assert "or its labels are transition ids" in done.output
    assert "give their --model" in done.output


def test_log_likelihoods_of_another_model_are_named(recogniser, tmp_path):
    pytest.importorskip("kaldi_native_io")
    folder = recogniser.folder
    export_graph(folder / "lang", folder / "lm.arpa", recogniser.senones, tmp_path, "transitions")
    graph, table = tmp_path / "HCLG.fst", tmp_path / "narrow.ark"
    table.write_text("u  [\n  0.5 ]\n")
    command = ["kaldi", "decode", graph, table, "--words", tmp_path / "words.txt"]
    command += ["--model", tmp_path / "0.trans_mdl"]
    done = CliRunner().invoke(cli.main, list(map(str, command)))
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: {graph} and {table}: the graph has ")
    assert "transition ids" not in done.stderr


def test_files_that_do_not_belong_together_are_named(recogniser, tmp_path):
    folder = recogniser.folder
    export_graph(folder / "lang", folder / "lm.arpa", recogniser.senones, tmp_path)
    small = Senones.monophone(Topology(("SIL", "SPN"), states=1, silence_states=1))
    (tmp_path / "small").mkdir()
    from toolkit.kaldi.transitions import Transitions

    (tmp_path / "small/model").write_text(Transitions(small).text())
    with pytest.raises(GraphError, match="reads the transition id"):
        load_graph(tmp_path / "HCLG.fst", tmp_path / "small/model")
    (tmp_path / "words.txt").write_text("<eps> 0\nYES 2\n")
    command = ["kaldi", "decode", tmp_path / "HCLG.fst", tmp_path / "loglikes.scp"]
    command += ["--words", tmp_path / "words.txt", "--model", tmp_path / "0.trans_mdl"]
    done = CliRunner().invoke(cli.main, list(map(str, command)))
    assert done.exit_code == 1
    assert "has no word 1: give the words.txt of the graph" in done.output
