"""Transducers and decoding graphs."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fsa.transducers import assert_scores_equal, transducers, transductions, without_labels
from tests.kaldi.forms import ReadTree, pdf_of_id, read_transitions
from tests.kaldi.openfst_files import fst_of, read_openfst
from tests.kaldi.rules import lang_faults
from toolkit import cli
from toolkit.fsa.decoding_graph import make_lexicon
from toolkit.fsa.fst import GraphError, connect, fst_from_arcs, load_fst
from toolkit.fsa.grammar import grammar_acceptor
from toolkit.fsa.remove_epsilon import remove_epsilon
from toolkit.hmm.phone_sets import default_roots, read_roots
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree import Leaf, Root, Split, Tree
from toolkit.kaldi.archive import entries, read_matrix
from toolkit.kaldi.dict_lang import KaldiDictError, read_lang
from toolkit.kaldi.features import KaldiFeaturesError
from toolkit.kaldi.graph import (
    dump_openfst,
    export_graph,
    export_likelihoods,
    load_graph,
    load_openfst,
    with_transition_ids,
    write_lang_dir,
)
from toolkit.kaldi.model import Transitions, transitions_of
from toolkit.lang.arpa import write_arpa
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon
from toolkit.lang.ngram import estimate
from toolkit.lang.probabilities import EntryProbabilities, LexiconProbabilities
from toolkit.lang.tables import SymbolTable


@settings(max_examples=60, deadline=None)
@given(transducers(labels=(0, 1, 2), cyclic=True))
def test_an_openfst_file_has_the_paths_of_the_transducer(fst):
    if not fst.num_arcs:
        return
    for by_output in (False, True):
        loaded = fst_of(dump_openfst(fst, by_output))
        assert_scores_equal(transductions(loaded, 5), transductions(fst, 5))


@settings(max_examples=60, deadline=None)
@given(transducers(words=(0,)), st.lists(st.integers(0, 3), min_size=20, max_size=20))
def test_several_words_of_an_arc_follow_each_other(fst, counts):
    """Also on final arcs."""
    splits = np.append(0, np.cumsum(counts[: fst.num_arcs])).astype(np.int32)
    fst = replace(fst, splits=splits, words=np.arange(1, 1 + splits[-1], dtype=np.int32))
    scores = without_labels(transductions(fst_of(dump_openfst(fst)), 30), 0)
    assert_scores_equal(scores, transductions(fst, 10))


@pytest.mark.parametrize("by_output", [False, True])
def test_arcs_are_sorted_by_the_labels_of_one_side(random_graph, by_output):
    content = dump_openfst(random_graph(1).fst, by_output)
    _, arcs, _ = read_openfst(content)
    keys = [(arc[0], arc[3 if by_output else 2]) for arc in arcs]
    assert keys == sorted(keys)
    properties = int.from_bytes(content[34:42], "little")
    assert properties == 0x3 | (0x40000000 if by_output else 0x10000000)


def test_the_best_final_arc_of_a_state_wins():
    fst = fst_from_arcs([(0, 1, 1, 0, -1.0)], {1: -2.0})
    twice = fst.select_arcs(np.array([0, 1, 1]))
    twice.scores[2] = -0.5
    assert read_openfst(dump_openfst(twice)) == (2, [(0, 1, 1, 0, 1.0)], {1: 0.5})


def test_a_transducer_without_paths_is_a_file_without_states():
    nothing = connect(fst_from_arcs([(0, 1, 1, 0, 0.0)], [0]).select_arcs(np.array([0])))
    assert read_openfst(dump_openfst(nothing)) == (0, [], {})


GRAPH = fst_from_arcs([(0, 1, 2, 7, -0.5), (1, 1, 3, 0, -1.0), (1, 2, 0, 4, 0.0)], {2: -2.0})


def header(kind, flags, start, states, arcs, arc="standard"):
    names = (struct.pack("<i", len(name)) + name.encode() for name in (kind, arc))
    numbers = struct.pack("<iiQqqq", 2, flags, 0, start, states, arcs)
    return struct.pack("<i", 2125659606) + b"".join(names) + numbers


def const(content, aligned):
    """A `vector` as `fstconvert --fst_type=const` writes it."""
    states, arcs, finals = read_openfst(content)
    converted = header("const", 4 * aligned, 0, states, len(arcs))
    converted += bytes(-len(converted) % 16 if aligned else 0)
    for state in range(states):
        first = sum(arc[0] < state for arc in arcs)
        state_arcs = [arc for arc in arcs if arc[0] == state]
        epsilon_counts = [sum(arc[side] == 0 for arc in state_arcs) for side in (2, 3)]
        cost = finals.get(state, float("inf"))
        converted += struct.pack("<fIIII", cost, first, len(state_arcs), *epsilon_counts)
    converted += bytes(-len(converted) % 16 if aligned else 0)
    return converted + b"".join(struct.pack("<iifi", r, w, c, t) for _, t, r, w, c in arcs)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(transducers(labels=(0, 1, 2), cyclic=True))
def test_written_transducers_are_read(tmp_path, fst):
    if not fst.num_arcs:
        return
    written = dump_openfst(fst)
    for content in (written, const(written, False), const(written, True)):
        (tmp_path / "x.fst").write_bytes(content)
        assert_scores_equal(
            transductions(load_openfst(tmp_path / "x.fst"), 5), transductions(fst, 5)
        )


def test_a_start_that_is_not_the_first_state_becomes_it(tmp_path):
    arcs = struct.pack("<iifi", 5, 6, 0.25, 0)
    states = struct.pack("<fq", 1.5, 0) + struct.pack("<fq", float("inf"), 1) + arcs
    (tmp_path / "x.fst").write_bytes(header("vector", 0, 1, 2, 1) + states)
    assert transductions(load_openfst(tmp_path / "x.fst"), 2) == {((5,), (6,)): -1.75}


def test_arcs_of_infinite_cost_are_on_no_path(tmp_path):
    arcs = [(0, 1, 2, 7, -0.5), (0, 1, 0, 8, -9.5), (1, 2, 0, 4, 0.0), (1, 2, 3, 5, -9.5)]
    content = dump_openfst(fst_from_arcs(arcs, {2: -2.0}))
    content = content.replace(struct.pack("<f", 9.5), struct.pack("<f", float("inf")))
    for variant in (content, const(content, True)):
        (tmp_path / "x.fst").write_bytes(variant)
        loaded = load_openfst(tmp_path / "x.fst")
        assert loaded.num_arcs == 3
        assert transductions(remove_epsilon(loaded), 5) == {((2,), (7, 4)): -2.5}


WRITTEN = dump_openfst(GRAPH)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "unpack"),
        (b"#FST" + WRITTEN[4:], "does not begin"),
        (header("vector", 0, 0, 1, 0, "log"), "a vector of log arcs"),
        (header("compact", 0, 0, 1, 0), "a compact of standard arcs"),
        (header("vector", 1, 0, 1, 0), "symbol tables"),
        (header("vector", 0, -1, 0, 0), "no start"),
        (header("vector", 0, 0, 2**40, 0), "no states"),
        (WRITTEN[:-4], "unpack"),
        (WRITTEN.replace(struct.pack("<q", 1), struct.pack("<q", 9)), "truncated within the arcs"),
        (const(WRITTEN, False)[:-4], "buffer"),
        (
            WRITTEN.replace(struct.pack("<f", 2.0), struct.pack("<f", float("inf"))),
            "no final state",
        ),
        (WRITTEN.replace(struct.pack("<f", 0.5), struct.pack("<f", float("nan"))), "costs are NaN"),
        (WRITTEN.replace(struct.pack("<ii", 2, 7), struct.pack("<ii", -2, 7)), "label is negative"),
    ],
)
def test_other_files_are_refused(tmp_path, content, reason):
    (tmp_path / "x.fst").write_bytes(content)
    with pytest.raises(GraphError, match=reason) as error:
        load_openfst(tmp_path / "x.fst")
    assert str(tmp_path / "x.fst") in str(error.value)


PHONES = ("SIL", "A", "B")
# Any words, by a unigram; words are 1 to 3, of two phones, one or two, and one.
GRAMMAR = fst_from_arcs([(0, 0, word, word, -word / 2) for word in (1, 2, 3)], {0: -1.0})
TOPOLOGIES = {
    "two states": Topology(PHONES, ("SIL",), states=2, silence_states=1),
    "one state": Topology(PHONES, ("SIL",), states=1, silence_states=1),
    "Kaldi's": Topology(PHONES, ("SIL",), states=2, silence_states=5),
    "onset": Topology(PHONES, ("SIL",)).at_low_rate(),
}


def senones(topology):
    """Senones whose pdfs depend on the neighbours; A and B share some."""
    roots, pdf = [], 0
    for state in range(topology.num_states(1)):
        roots.append(Root((1,), state, Leaf(pdf, 0)))
        pdf += 1
    for state in range(topology.num_states(2)):
        no = Split("centre", frozenset({3}), 1.0, 1, Leaf(pdf + 1, 0), Leaf(pdf + 2, 0))
        yes = Split("right", frozenset({2}), 1.0, 1, Leaf(pdf, 0), Leaf(pdf + 1, 0))
        roots.append(Root((2, 3), state, Split("left", frozenset({1, 3}), 1.0, 1, yes, no)))
        pdf += 3
    return Senones(topology, Tree(PHONES, tuple(roots)))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_transition_ids_are_walks_through_hmms_with_the_pdfs_and_words_of_the_graph(toy, name):
    hmms = senones(TOPOLOGIES[name])
    transitions = Transitions(hmms)
    pdf_graph = toy.decoding_graph(hmms, GRAMMAR)
    graph = with_transition_ids(toy.decoding_graph(transitions.states, GRAMMAR), transitions)
    length = 6 if name == "Kaldi's" else 5
    expected = transductions(pdf_graph, length + 1)
    scores = without_labels(transductions(graph, length + 2), 0)  # the first arc reads nothing
    assert expected
    best = {}
    for (read, wrote), score in scores.items():
        key = tuple(1 + int(pdf_of_id(transitions)[id - 1]) for id in read), wrote
        best[key] = max(best.get(key, score), score)
        assert is_walk(read, transitions)
    assert_scores_equal(best, expected)


def is_walk(read, transitions):
    """Whether each transition leads to the state that the next one leaves."""
    topology, reached = transitions.senones.topology, 0
    row = {}
    for state, (first, last) in enumerate(
        zip(transitions.first, transitions.first[1:], strict=False)
    ):
        row |= {number: (state, number - first) for number in range(first, last)}
    phone = None
    for number in read:
        state, position = row[number]
        if transitions.state[state] != reached or phone not in (None, transitions.phone[state]):
            return False
        targets = transitions_of(topology, int(transitions.phone[state]), int(reached))
        reached, phone = targets[position], transitions.phone[state]
        if reached == topology.num_states(int(phone)):
            reached, phone = 0, None
    return phone is None


PENALTY = -0.75


@pytest.mark.parametrize("labels", ["pdfs", "transitions"])
def test_sentences_have_the_costs_of_the_graph(recogniser, tmp_path, labels):
    folder, lang = recogniser.folder, recogniser.lang
    arguments = (folder / "lang", folder / "lm.arpa", recogniser.senones, tmp_path / "out")
    sizes = export_graph(*arguments, labels, PENALTY)
    graph = load_fst(recogniser.graph)
    assert sizes == {"states": graph.num_states, "arcs": graph.num_arcs}
    frames = 9
    expected = {
        (read, words): score + PENALTY * len(words)
        for (read, words), score in transductions(graph, frames + 1).items()
    }
    scores = without_labels(
        transductions(fst_of((tmp_path / "out/HCLG.fst").read_bytes()), frames + 4), 0
    )
    scores = {key: score for key, score in scores.items() if len(key[0]) <= frames}
    if labels == "transitions":
        text = (tmp_path / "out/0.trans_mdl").read_text()
        topology, triples, _ = read_transitions(text)
        pdfs = [pdf for phone, state, pdf in triples for _ in topology[phone][state]]
        best = {}
        for (read, words), score in scores.items():
            key = tuple(1 + pdfs[number - 1] for number in read), words
            best[key] = max(best.get(key, score), score)
        scores = best
    assert {words for _, words in scores} >= {(lang.words["NO"],), (lang.words["YES"],)}
    assert_scores_equal(scores, expected)


def test_the_folder_has_what_decoders_ask_for(recogniser, tmp_path):
    folder = recogniser.folder
    recogniser.senones.save(folder / "mono")
    command = ["kaldi", "export-graph", "--lang", str(folder / "lang")]
    command += ["--lm", str(folder / "lm.arpa"), "--senones", str(folder / "mono")]
    result = CliRunner().invoke(cli.main, [*command, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "states" in result.output
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
    index = entries(tmp_path / "loglikes.scp")
    assert list(index) == ["a", "b", "É"]
    for utterance, entry in index.items():
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
    result = CliRunner().invoke(cli.main, command)
    assert result.exit_code == 2
    assert "adapted features" in result.output


LEXICON = Lexicon(
    {
        "A": [("AH0",), ("EY1",)],
        "AN": [("AH0", "N")],
        "CAT": [("K", "AE1", "T")],
        "EH": [("EY1",)],
        "É": [("EY0", "EY1")],
    }
)
TEXT = [["A", "CAT"], ["A", "CAT", "EH"], ["AN", "É"], ["A"], ["EH", "A", "CAT"]]
KNOWN = LexiconProbabilities(
    {("EH", ("EY1",)): EntryProbabilities(1.0, 0.25, 1.5)}, 0.9, 1.2, 0.5, 0.3
)
KINDS = ("plain", "marked", "weighted")


def vocabulary(kind):
    lang = Lang.of(LEXICON.with_positions() if kind == "marked" else LEXICON)
    return replace(lang, probabilities=KNOWN) if kind == "weighted" else lang


def exported(folder, kind="marked"):
    """The vocabulary and its directory."""
    lang = vocabulary(kind)
    write_arpa(estimate(TEXT, lang.vocabulary, 2, (1,))[0], folder / "lm.arpa")
    write_lang_dir(lang, folder / "lang", grammar_acceptor(folder / "lm.arpa", lang.words))
    return lang, folder / "lang"


@pytest.mark.parametrize("kind", KINDS)
def test_kaldi_finds_nothing_wrong(tmp_path, kind):
    _, folder = exported(tmp_path, kind)
    assert lang_faults(folder) == []


@pytest.mark.parametrize(
    ("name", "original", "replacement", "fault"),
    [
        ("phones/silence.int", "2\n", "3\n", "silence.int"),
        ("phones/nonsilence.csl", "3:", "", "nonsilence.csl"),
        ("phones/roots.txt", "not-split SPN", "not-split", "roots: other phones in .int"),
        ("phones/sets.int", "2\n", "", "sets: other lines in .int"),
        ("phones/word_boundary.txt", "SPN singleton", "SPN nonword", "word_boundary: other"),
        ("phones/extra_questions.txt", "SIL", "SPN", "extra_questions: other phones in .int"),
        ("phones/wdisambig_words.int", "7", "8", "wdisambig_words.int"),
        ("phones/optional_silence.txt", "SIL", "AH0_S", "optional silence"),
        ("topo", "<ForPhones>\n1", "<ForPhones>\n3", "topo: not each phone once"),
        ("words.txt", "CAT 3", "CAT 4", "words.txt: an id twice"),
        ("oov.int", "6", "5", "oov"),
    ],
)
def test_the_rules_find_each_fault(tmp_path, name, original, replacement, fault):
    _, folder = exported(tmp_path)
    text = (folder / name).read_text("utf-8")
    assert original in text
    (folder / name).write_text(text.replace(original, replacement, 1), "utf-8")
    assert any(fault in message for message in lang_faults(folder))


def test_the_rules_find_unk_that_is_no_word(tmp_path):
    _, folder = exported(tmp_path)
    for end, spn in (("txt", "SPN"), ("int", "2")):
        path = folder / f"phones/word_boundary.{end}"
        path.write_text(path.read_text().replace(f"{spn} singleton", f"{spn} nonword"))
    assert {*lang_faults(folder)} == {
        "L.fst: another number of words",
        "L_disambig.fst: another number of words",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_lexicon_and_grammar_equal_those_of_the_toolkit(tmp_path, kind):
    lang, folder = exported(tmp_path, kind)
    lexicon = make_lexicon(lang, unknown=True)
    length = 7
    expected = transductions(lexicon, length)
    assert_scores_equal(
        transductions(fst_of((folder / "L_disambig.fst").read_bytes()), length), expected
    )
    symbols = [lang.phones[symbol] for symbol in lang.disambig_symbols]
    # Where L_disambig reads a symbol, L reads nothing; #0 is in neither what it reads nor writes.
    backoff = lang.words["#0"]
    spoken = {key: score for key, score in expected.items() if backoff not in key[1]}
    lexicon_scores = without_labels(
        transductions(fst_of((folder / "L.fst").read_bytes()), length), 0
    )
    assert_scores_equal(lexicon_scores, without_labels(spoken, 0, *symbols))
    grammar = grammar_acceptor(tmp_path / "lm.arpa", folder / "words.txt")
    grammar_scores = transductions(fst_of((folder / "G.fst").read_bytes()), 4)
    assert_scores_equal(grammar_scores, transductions(grammar, 4))
    assert lang.words["<UNK>"] in {word for _, words in expected for word in words}


def test_roots_equal_those_of_the_trees(tmp_path):
    lang, folder = exported(tmp_path)
    topology = Topology(tuple(lang.real_phones))
    assert read_roots(folder / "phones/roots.txt", topology) == default_roots(topology)
    assert "not-shared split EY0_B EY1_E EY1_S\n" in (folder / "phones/roots.txt").read_text()


def test_questions_are_about_silence_stress_and_position(tmp_path):
    _, folder = exported(tmp_path)
    lines = (folder / "phones/extra_questions.txt").read_text().splitlines()
    assert lines == [
        "SIL SPN",
        "K_B N_E T_E",
        "AH0_B AH0_S EY0_B",
        "AE1_I EY1_E EY1_S",
        "AH0_B EY0_B K_B",
        "EY1_E N_E T_E",
        "AE1_I",
        "AH0_S EY1_S",
    ]


def test_an_export_without_a_grammar_leaves_none_of_an_earlier_one(tmp_path):
    lang, folder = exported(tmp_path)
    write_lang_dir(lang, folder)
    assert not (folder / "G.fst").exists()
    assert lang_faults(folder) == []
    assert read_lang(folder)[0].lexicon == lang.lexicon


def test_a_model_that_cannot_be_read_leaves_nothing_behind(tmp_path):
    vocabulary("plain").save(tmp_path / "lang")
    (tmp_path / "empty").touch()
    command = ["kaldi", "export-lang", "--lang", tmp_path / "lang", "--lm", tmp_path / "empty"]
    result = CliRunner().invoke(cli.main, [*map(str, command), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert f"{tmp_path / 'empty'}:1: no line" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_word_with_a_no_break_space_is_refused(tmp_path):
    lexicon = Lexicon({"A": [("AH0",)], "A\N{NO-BREAK SPACE}B": [("AH0", "N")]})
    with pytest.raises(KaldiDictError, match="white space"):
        write_lang_dir(Lang.of(lexicon), tmp_path)


def export_with(tmp_path, arpa):
    vocabulary("plain").save(tmp_path / "lang")
    (tmp_path / "lm.arpa").write_text(arpa)
    command = ["kaldi", "export-lang", "--lang", tmp_path / "lang", "--lm", tmp_path / "lm.arpa"]
    return CliRunner().invoke(cli.main, [*map(str, command), "--out", str(tmp_path / "out")])


def test_a_model_in_the_other_case_is_refused(tmp_path):
    """The remaining n-grams, <unk> and </s>, are no grammar."""
    words = ["<s>", "</s>", "<unk>", *map(str.lower, vocabulary("plain").vocabulary)]
    grams = "".join(f"-1.0\t{word}\n" for word in words)
    arpa = f"\\data\\\nngram 1={len(words)}\n\n\\1-grams:\n{grams}\n\\end\\\n"
    result = export_with(tmp_path, arpa)
    assert result.exit_code == 1
    assert "use the same spelling of words in both" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_model_that_lacks_most_words_is_a_warning(tmp_path, caplog):
    words = vocabulary("plain").vocabulary
    grams = "".join(f"-1.0\t{word}\n" for word in ("<s>", "</s>", words[0]))
    result = export_with(tmp_path, f"\\data\\\nngram 1=3\n\n\\1-grams:\n{grams}\n\\end\\\n")
    assert result.exit_code == 0, result.output
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"{tmp_path / 'lm.arpa'}: the language model lacks {len(words) - 1} of" in warning


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
    result = CliRunner().invoke(cli.main, list(map(str, command)))
    assert result.exit_code == 0, result.output
    assert result.stdout == "a YES NO\nb NO\nÉ NO YES NO\n"
    (tmp_path / "short.ark").write_text("short  [ ]\n")
    command[3] = tmp_path / "short.ark"
    result = CliRunner().invoke(cli.main, list(map(str, command)))
    assert (result.exit_code, result.stdout) == (1, "short\n")
    assert "short: no path survived" in result.stderr
    assert f"Error: {tmp_path / 'short.ark'}: the search found a path for none" in result.stderr
    scores = (tmp_path / "loglikes.scp").read_text()
    (tmp_path / "one.scp").write_text(f"short {tmp_path}/short.ark:6\n{scores}")
    command[3] = tmp_path / "one.scp"
    result = CliRunner().invoke(cli.main, list(map(str, command)))
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "short")


def test_transition_ids_without_their_model_are_an_error(recogniser, tmp_path):
    pytest.importorskip("kaldi_native_io")
    folder = recogniser.folder
    export_graph(folder / "lang", folder / "lm.arpa", recogniser.senones, tmp_path, "transitions")
    export_likelihoods(recogniser.scorer(TEXTS), tmp_path)
    command = ["kaldi", "decode", tmp_path / "HCLG.fst", tmp_path / "loglikes.scp"]
    command += ["--words", tmp_path / "words.txt"]
    result = CliRunner().invoke(cli.main, list(map(str, command)))
    assert result.exit_code == 1
    assert "its labels are transition ids" in result.output
    assert "give the graph's model with --model" in result.output


def test_log_likelihoods_of_another_model_are_an_error(recogniser, tmp_path):
    pytest.importorskip("kaldi_native_io")
    folder = recogniser.folder
    export_graph(folder / "lang", folder / "lm.arpa", recogniser.senones, tmp_path, "transitions")
    graph, table = tmp_path / "HCLG.fst", tmp_path / "narrow.ark"
    table.write_text("u  [\n  0.5 ]\n")
    command = ["kaldi", "decode", graph, table, "--words", tmp_path / "words.txt"]
    command += ["--model", tmp_path / "0.trans_mdl"]
    result = CliRunner().invoke(cli.main, list(map(str, command)))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {graph} and {table}: the graph has ")
    assert "transition ids" not in result.stderr


def test_mismatched_files_are_an_error(recogniser, tmp_path):
    folder = recogniser.folder
    export_graph(folder / "lang", folder / "lm.arpa", recogniser.senones, tmp_path)
    small = Senones.monophone(Topology(("SIL", "SPN"), states=1, silence_states=1))
    (tmp_path / "small").mkdir()
    from toolkit.kaldi.model import Transitions

    (tmp_path / "small/model").write_text(Transitions(small).text())
    with pytest.raises(GraphError, match="has the transition id"):
        load_graph(tmp_path / "HCLG.fst", tmp_path / "small/model")
    (tmp_path / "words.txt").write_text("<eps> 0\nYES 2\n")
    command = ["kaldi", "decode", tmp_path / "HCLG.fst", tmp_path / "loglikes.scp"]
    command += ["--words", tmp_path / "words.txt", "--model", tmp_path / "0.trans_mdl"]
    result = CliRunner().invoke(cli.main, list(map(str, command)))
    assert result.exit_code == 1
    assert "has no word with the id 1: give the words.txt of the graph" in result.output
