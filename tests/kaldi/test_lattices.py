"""Export and import of word lattices."""

import gzip
import re
import struct

import numpy as np
import pytest
from click.testing import CliRunner

from tests.decode.test_combine import write_decode
from tests.fsa.word_lattices import random_lattice, word_sequences
from toolkit import cli
from toolkit.fsa.lattice_store import LatticeStoreError, WeightsUsed
from toolkit.kaldi.lattices import kaldi_text, openfst_text, read_compact_lattices, slf

SYMBOLS = ["<eps>", "ONE", "'TIS", "A\\B"]
SCALE, PENALTY = 0.3, -1.0
DECODING = WeightsUsed(SCALE, PENALTY, 0.25)


def search_lattice(seed):
    """Every state has at most one arc without a word, into the last state."""
    lattice = random_lattice(seed)
    words = lattice.words.copy()
    last = lattice.num_states - 1
    silent = np.flatnonzero((words == 0) & (lattice.target != last))
    words[silent] = 1
    ending = np.flatnonzero(lattice.target == last)
    words[ending] = [
        0 if a == np.flatnonzero(ends)[0] else 2
        for a in ending
        for ends in [(lattice.source == lattice.source[a]) & (lattice.target == last)]
    ]
    return type(lattice)(
        **{**{n: getattr(lattice, n) for n in lattice.__dataclass_fields__}, "words": words}
    )


def sentences(arcs, finals):
    """{(words, cost, frames)} of an acceptor: arcs (source, target, word, cost, frames)."""
    complete, stack = set(), [(0, (), 0.0, 0)]
    while stack:
        state, words, cost, frames = stack.pop()
        if state in finals:
            final_cost, length = finals[state]
            complete.add((words, round(cost + final_cost, 4), frames + length))
        for source, target, word, weight, length in arcs:
            if source == state:
                read = (*words, word) if word else words
                stack.append((target, read, cost + weight, frames + length))
    return complete


def expected(lattice, frames):
    scores = lattice.scores(SCALE, PENALTY)
    return {(words, round(-score, 4), frames) for words, score in word_sequences(lattice, scores)}


def read_kaldi(text):
    """Paths by utterance of a text archive of compact lattices, with the scale of decoding."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    for block in blocks:
        key, *lines = block.split("\n")
        assert re.fullmatch(r"\S+ ", key)
        arcs, finals = [], {}
        for line in lines:
            fields = line.split("\t")
            lm, acoustic, string = (fields[-1] if len(fields) in (2, 4) else "0,0,").split(",")
            length = len(string.split("_")) if string else 0
            cost = float(lm) + SCALE * float(acoustic)
            if len(fields) == 4:
                word = int(fields[2])
                arcs.append((int(fields[0]), int(fields[1]), word, cost - PENALTY, length))
            else:
                finals[int(fields[0])] = cost, length
        yield key.strip(), sentences(arcs, finals)


def read_slf(text):
    fields = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in text.splitlines()]
    head = {name: value for line in fields[:4] for name, value in line.items()}
    nodes = {int(line["I"]): float(line["t"]) for line in fields if "I" in line}
    links = [line for line in fields if "J" in line]
    assert (int(head["N"]), int(head["L"])) == (len(nodes), len(links))
    assert head["VERSION"] == "1.0"
    arcs = []
    for link in links:
        word = re.sub(r"\\(.)", r"\1", link["W"])
        penalty = 0.0 if word == "!NULL" else float(head["wdpenalty"])
        score = float(head["acscale"]) * float(link["a"]) + float(head["lmscale"]) * float(
            link["l"]
        )
        number = 0 if word == "!NULL" else SYMBOLS.index(word)
        source, target = int(link["S"]), int(link["E"])
        length = round((nodes[target] - nodes[source]) / 0.25)
        arcs.append((source, target, number, -score - penalty, length))
    entered = {arc[1] for arc in arcs}
    left = {arc[0] for arc in arcs}
    assert [state for state in nodes if state not in entered] == [0]
    (last,) = (state for state in nodes if state not in left)
    return head["UTTERANCE"], sentences(arcs, {last: (0.0, 0)})


def read_openfst(text):
    arcs, finals = [], {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == 4:
            source, target, word, cost = fields
            arcs.append((int(source), int(target), SYMBOLS.index(word), float(cost), 0))
        else:
            finals[int(fields[0])] = (0.0, 0)
    return sentences(arcs, finals)


@pytest.mark.parametrize("seed", range(12))
def test_all_formats_have_the_same_paths_and_costs(seed):
    lattice = search_lattice(seed)
    begun = lattice.times - lattice.times[0]
    frames = round(begun[-1] / 0.25)
    assert len(expected(lattice, frames)) > 3
    texts = [kaldi_text(name, lattice, DECODING) for name in ("utt-1", "utt-2")]
    utterances = dict(read_kaldi("".join(texts)))
    assert utterances == {"utt-1": expected(lattice, frames), "utt-2": expected(lattice, frames)}
    name, spoken = read_slf(slf("utt-1", lattice, DECODING, SYMBOLS.__getitem__))
    assert (name, spoken) == ("utt-1", expected(lattice, frames))
    text = openfst_text(lattice, DECODING, SYMBOLS.__getitem__)
    assert read_openfst(text) == expected(lattice, 0)


def test_openfst_text_compiles_in_openfst():
    kaldifst = pytest.importorskip("kaldifst")
    lattice = search_lattice(5)
    ids = {symbol: str(number) for number, symbol in enumerate(SYMBOLS)}
    lines = openfst_text(lattice, DECODING, SYMBOLS.__getitem__).splitlines()
    numbered = [
        "\t".join([*f[:2], ids[f[2]], f[3]]) if len(f := line.split("\t")) == 4 else line
        for line in lines
    ]
    fst = kaldifst.compile("\n".join(numbered) + "\n", acceptor=True)
    best = kaldifst.shortest_path(fst)
    words, cost, state = [], 0.0, best.start
    while best.num_arcs(state):
        (arc,) = list(kaldifst.ArcIterator(best, state))
        words += [arc.ilabel] if arc.ilabel else []
        cost, state = cost + arc.weight.value, arc.nextstate
    scores = lattice.scores(SCALE, PENALTY)
    assert words == lattice.best_words(scores)
    assert cost == pytest.approx(-scores[lattice.best_path(scores)].sum(), abs=1e-3)


SHIFT = DECODING.frame_shift


def binary(states, arcs, finals, start=0):
    """A lattice as Kaldi writes it: arcs (source, target, word, graph, acoustic, ids)."""

    def weight(graph, acoustic, ids):
        return struct.pack(f"<ffi{len(ids)}i", graph, acoustic, len(ids), *ids)

    content = b"".join(struct.pack("<i", len(n)) + n for n in (b"vector", b"compactlattice44"))
    content += struct.pack("<iiQqqq", 2, 0, 3, start, states, len(arcs))
    for state in range(states):
        content += weight(*finals.get(state, (float("inf"), float("inf"), [])))
        state_arcs = [arc for arc in arcs if arc[0] == state]
        content += struct.pack("<q", len(state_arcs))
        for _, target, word, *weights in state_arcs:
            content += struct.pack("<ii", word, word) + weight(*weights) + struct.pack("<i", target)
    return struct.pack("<i", 2125659606) + content


def of_text(text):
    """The binary archive of a text archive."""
    archive = b""
    for block in text.split("\n\n")[:-1]:
        key, *lines = block.split("\n")
        arcs, finals = [], {}
        for line in lines:
            fields = line.split("\t")
            graph, acoustic, ids = (fields.pop() if len(fields) % 2 == 0 else "0,0,").split(",")
            costs_and_ids = float(graph), float(acoustic), [int(n) for n in ids.split("_") if n]
            if len(fields) == 3:
                arcs.append((*map(int, fields), *costs_and_ids))
            else:
                finals[int(fields[0])] = costs_and_ids
        states = 1 + max([*finals, *(n for arc in arcs for n in arc[:2])])
        archive += key.encode() + binary(states, arcs, finals)
    return archive


@pytest.mark.parametrize("form", ["text", "binary", "gzip"])
def test_paths_have_their_words_and_scores(tmp_path, form):
    lattices = {f"u-{seed}": search_lattice(seed) for seed in range(20)}
    text = "".join(kaldi_text(name, lattice, DECODING) for name, lattice in lattices.items())
    content = of_text(text) if form == "binary" else text.encode()
    (tmp_path / "lat").write_bytes(gzip.compress(content) if form == "gzip" else content)
    loaded = dict(read_compact_lattices(tmp_path / "lat", SHIFT))
    assert list(loaded) == list(lattices)
    for name, lattice in lattices.items():
        for kind in ("graph", "acoustic"):
            expected_paths = sorted(word_sequences(lattice, getattr(lattice, kind)))
            paths = sorted(word_sequences(loaded[name], getattr(loaded[name], kind)))
            assert [words for words, _ in paths] == [words for words, _ in expected_paths]
            scores = [score for _, score in expected_paths]
            assert [score for _, score in paths] == pytest.approx(scores, abs=1e-4)
        length = lattice.times[-1] - lattice.times[0]
        assert loaded[name].times[-1] == pytest.approx(length)
        if form != "binary":  # whose costs have fewer digits
            exported = kaldi_text(name, loaded[name], DECODING)
            assert dict(read_kaldi(exported))[name] == expected(lattice, round(length / SHIFT))


def test_states_in_any_order_dead_ends_and_lattices_without_paths(tmp_path):
    arcs = [(2, 0, 5, 1.0, 2.0, [7, 7]), (0, 1, 6, 0.5, 0.0, [7]), (2, 3, 9, 0.0, 0.0, [7])]
    good = binary(4, arcs, {1: (0.25, 0.0, [7])}, start=2)
    (tmp_path / "lat").write_bytes(b"a " + good + b"b " + binary(1, [], {}) + b"c \n\n")
    loaded = dict(read_compact_lattices(tmp_path / "lat", 0.01))
    assert loaded["b"] is None
    assert loaded["c"] is None
    assert word_sequences(loaded["a"], loaded["a"].graph) == [((5, 6), -1.75)]
    assert loaded["a"].times.tolist() == pytest.approx([0, 0.02, 0.03, 0.04])


@pytest.mark.parametrize("form", ["text", "binary"])
def test_arcs_of_infinite_cost_are_on_no_path(tmp_path, form):
    text = (
        "a \n0\t1\t3\tInfinity,2,1\n0\t1\t4\t1,2,1\n0\t2\t5\t1,inf,1_1\n1\t0.5,0,\n2\n\n"
        "b \n0\t1\t3\t1,2,1\n1\tInfinity,Infinity,\n\n"
    )
    (tmp_path / "lat").write_bytes(of_text(text) if form == "binary" else text.encode())
    loaded = dict(read_compact_lattices(tmp_path / "lat", SHIFT))
    assert word_sequences(loaded["a"], loaded["a"].graph + loaded["a"].acoustic) == [((4,), -3.5)]
    assert loaded["b"] is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a \n0\t0\t1\t0,0,1\n0\n\n", "a: a cycle"),
        (b"a \n0\t1\t1\t0,0,1\n0\t1\t2\t0,0,1_1\n1\n\n", "a: two paths to the same state"),
        (b"a \n0\t1\t1\t2\t0,0\n1\n\n", "a: a line of 5 fields"),
        (b"a \n0\t1\t1\t0.5\n1\n\n", "a: .*unpack"),
        (b"a \n0\t1\t1\tnan,0,1\n1\n\n", "a: a cost is NaN or minus infinity"),
        (b"a \n0\t1\t1\t0,-inf,1\n1\n\n", "a: a cost is NaN or minus infinity"),
        (b"a " + binary(1, [], {0: (float("nan"), 0, [])}), "a: a cost is NaN or minus infinity"),
        (b"no lattice", "invalid literal"),
        (b"a " + binary(2, [(0, 9, 1, 0, 0, [])], {1: (0, 0, [])}), "does not exist"),
        (b"a " + binary(2, [(0, 1, 1, 0, 0, [1])], {})[:-9], "unpack"),
        (b"a " + binary(1, [], {}).replace(b"compactlattice44", b"lattice4________"), "lattice4"),
    ],
)
def test_other_archives_are_refused(tmp_path, content, reason):
    (tmp_path / "lat").write_bytes(content)
    with pytest.raises(LatticeStoreError, match=reason) as error:
        list(read_compact_lattices(tmp_path / "lat", 0.01))
    assert str(tmp_path / "lat") in str(error.value)


@pytest.fixture
def decoded(tmp_path):
    (tmp_path / "dev/word_lattices").mkdir(parents=True)
    posteriors = {"a-1": {"ONE TWO": 0.6, "TWO THREE": 0.4}, "../b-1": {"TWO": 1.0}, "c": {}}
    return write_decode(tmp_path / "dev", posteriors)


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


def test_exported_lattices_are_imported(decoded, tmp_path):
    run("export", decoded, "--out", tmp_path / "out")
    names = [tmp_path / "out/lat.txt", "--words", tmp_path / "out/words.txt"]
    scale = ["--acoustic-scale", 1]
    stdout = run("import", *names, *scale, "--out", tmp_path / "again")
    assert "2 lattices" in stdout
    (tmp_path / "ref").write_text("a-1 TWO THREE\n../b-1 TWO ONE\n")
    original_oracle, imported_oracle = (
        run("oracle", folder, "--ref", tmp_path / "ref").splitlines()[0]
        for folder in (decoded, tmp_path / "again")
    )
    assert original_oracle == imported_oracle
    arguments = ["lattice", "import", *names, names[0], "--out", tmp_path / "twice"]
    result = CliRunner().invoke(cli.main, list(map(str, arguments)))
    assert "'a-1' occurs twice" in result.output
    (tmp_path / "out/words.txt").write_text("<eps> 0\n")
    arguments = ["lattice", "import", *names, "--out", tmp_path / "none"]
    result = CliRunner().invoke(cli.main, list(map(str, arguments)))
    assert "has no word" in result.output


@pytest.mark.parametrize("shift", ["0", "-10"])
def test_an_import_without_a_positive_frame_shift_is_refused(decoded, tmp_path, shift):
    run("export", decoded, "--out", tmp_path)
    words = ["--words", str(tmp_path / "words.txt"), "--out", str(tmp_path / "again")]
    arguments = ["lattice", "import", str(tmp_path / "lat.txt"), *words, "--frame-shift", shift]
    assert CliRunner().invoke(cli.main, arguments).exit_code == 2


def test_an_import_leaves_nothing_of_an_earlier_one(decoded, tmp_path):
    run("export", decoded, "--out", tmp_path / "out")
    lattices = (tmp_path / "out/lat.txt").read_text().split("\n\n")
    paths = [tmp_path / "lat.1", tmp_path / "lat.2"]
    for path, lattice in zip(paths, lattices, strict=False):
        path.write_text(f"{lattice}\n\n")
    words = ["--words", tmp_path / "out/words.txt", "--out", tmp_path / "again"]
    assert "2 lattices" in run("import", *paths, *words)
    assert "1 lattices" in run("import", paths[0], *words)
    name = lattices[0].split()[0]
    (tmp_path / "ref").write_text(f"{name} TWO\n")
    assert "\n1 lattices, " in run("oracle", tmp_path / "again", "--ref", tmp_path / "ref")


def test_nothing_to_import_or_to_compare_is_an_error(decoded, tmp_path):
    (tmp_path / "lat.txt").write_text("")
    (tmp_path / "words.txt").write_text("<eps> 0\n")
    (tmp_path / "ref").write_text("other-1 ONE\n")
    archive, out = str(tmp_path / "lat.txt"), str(tmp_path / "out")
    words = ["--words", str(tmp_path / "words.txt")]
    result = CliRunner().invoke(cli.main, ["lattice", "import", archive, *words, "--out", out])
    message = f"Error: there is no lattice with a path in {archive}\n"
    assert (result.exit_code, result.stderr) == (1, message)
    reference = ["--ref", str(tmp_path / "ref")]
    result = CliRunner().invoke(cli.main, ["lattice", "oracle", str(decoded), *reference])
    assert result.exit_code == 1
    assert f"{decoded} has no lattice for any utterance in {tmp_path / 'ref'}" in result.stderr
