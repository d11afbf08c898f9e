"""Exported graphs and log-likelihoods; other people's decoders search them in tests/interop."""

import numpy as np
import pytest
from click.testing import CliRunner

from tests.fsa.transducers import agree, silent, transductions
from tests.kaldi.forms import ReadTree, read_transitions
from tests.kaldi.openfst_files import fst_of
from toolkit import cli
from toolkit.fsa.fst import load_fst
from toolkit.kaldi.features import KaldiFeaturesError
from toolkit.kaldi.graph import export_graph
from toolkit.kaldi.likelihoods import export_likelihoods
from toolkit.kaldi.tables import entries, read_matrix
from toolkit.lang.tables import SymbolTable

PENALTY = -0.75


@pytest.mark.parametrize("labels", ["pdfs", "transitions"])
def test_sentences_have_the_costs_of_the_toolkits_graph(recogniser, tmp_path, labels):
    folder, lang = recogniser.folder, recogniser.lang
    arguments = (folder / "lang", folder / "lm.arpa", recogniser.senones, tmp_path / "out")
    sizes = export_graph(*arguments, labels, PENALTY)
    own = load_fst(recogniser.graph)
    assert sizes == {"states": own.num_states, "arcs": own.num_arcs}
    frames = 9
    expected = {
        (read, words): score + PENALTY * len(words)
        for (read, words), score in transductions(own, frames + 1).items()
    }
    found = silent(transductions(fst_of((tmp_path / "out/HCLG.fst").read_bytes()), frames + 4), 0)
    found = {key: score for key, score in found.items() if len(key[0]) <= frames}
    if labels == "transitions":
        text = (tmp_path / "out/0.trans_mdl").read_text()
        topology, triples, _ = read_transitions(text)
        pdfs = [pdf for phone, state, pdf in triples for _ in topology[phone][state]]
        best = {}
        for (read, words), score in found.items():
            key = tuple(1 + pdfs[number - 1] for number in read), words
            best[key] = max(best.get(key, score), score)
        found = best
    assert {words for _, words in found} >= {(lang.words["NO"],), (lang.words["YES"],)}
    agree(found, expected)


def test_the_folder_has_what_decoders_ask_for(recogniser, tmp_path):
    folder = recogniser.folder
    recogniser.senones.save(folder / "mono")
    command = ["kaldi", "export-graph", "--lang", str(folder / "lang")]
    command += ["--lm", str(folder / "lm.arpa"), "--senones", str(folder / "mono")]
    done = CliRunner().invoke(cli.main, [*command, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "states" in done.output
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "0.trans_mdl", "HCLG.fst", "num_pdfs", "phones.txt", "tree", "words.txt",
    ]  # fmt: skip
    assert SymbolTable.read(out / "words.txt") == recogniser.lang.words
    assert SymbolTable.read(out / "phones.txt") == recogniser.lang.phones
    assert int((out / "num_pdfs").read_text()) == recogniser.senones.num_pdfs
    assert ReadTree((out / "tree").read_text()).pdf(0, 1, 0, 0) == 0


def test_log_likelihoods_come_back_in_the_order_of_kaldi(recogniser, tmp_path):
    pytest.importorskip("kaldi_native_io")
    scorer = recogniser.scorer({"b": "YES", "a": "NO", "É": "YES NO"})
    assert export_likelihoods(scorer, tmp_path) == 3
    found = entries(tmp_path / "loglikes.scp")
    assert list(found) == ["a", "b", "É"]
    for utterance, entry in found.items():
        np.testing.assert_array_equal(read_matrix(entry), scorer.log_likelihoods(utterance))
    assert sorted(path.name for path in tmp_path.glob("*loglikes*")) == [
        "loglikes.ark",
        "loglikes.scp",
    ]


def test_an_id_that_kaldi_cannot_read_is_refused(recogniser, tmp_path):
    pytest.importorskip("kaldi_native_io")
    with pytest.raises(KaldiFeaturesError, match="white space"):
        export_likelihoods(recogniser.scorer({"a b": "YES"}), tmp_path)


def test_a_network_takes_no_transforms(tmp_path):
    command = ["kaldi", "export-likelihoods", "--model", str(tmp_path), "--features", "x"]
    command += ["--transforms", "y", "--out", str(tmp_path)]
    done = CliRunner().invoke(cli.main, command)
    assert done.exit_code == 2
    assert "adapted features" in done.output
