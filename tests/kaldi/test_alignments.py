import contextlib
import gzip
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.align.ctm_textgrid import CtmEntry, read_ctm
from toolkit.align.store import AlignmentStore, Outcome, phone_times, read_table, write_shard
from toolkit.errors import ToolkitError
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.kaldi import alignments
from toolkit.kaldi.alignments import (
    export_alignments,
    import_alignments,
    import_phone_times,
)
from toolkit.kaldi.archive import read_int_vectors
from toolkit.kaldi.model import Transitions

kaldi = pytest.importorskip("kaldi_native_io")

TOPOLOGY = Topology(("SIL", "SPN", "A", "B"))
#            SIL: 0-4    SPN: 5-9    A: 10-12    B: 13-15
STATES = {
    "u1": [0, 2, 4, 10, 10, 11, 12, 13, 14, 15, 15],
    "u2": [10, 11, 12, 10, 11, 12, 12, 0, 1, 2, 3, 4],
}


@pytest.fixture
def folder(tmp_path):
    alignments = {u: torch.tensor(states) for u, states in STATES.items()}
    outcomes = [Outcome(u, "ok", -1.0, 10.0, "") for u in STATES]
    write_shard(tmp_path / "ali/ali.000000.tar", alignments, outcomes)
    TOPOLOGY.save(tmp_path / "system/topology.json")
    return tmp_path


def load_alignments(path):
    store = AlignmentStore(path)
    return {u: store.load(u).tolist() for u in store.ids}


@pytest.mark.parametrize("name", ["ali.ark", "ali.scp", "text", "ali.1.gz", "text.gz"])
def test_alignments_round_trip_bit_for_bit(folder, name):
    out = folder / "kaldi"
    assert export_alignments(folder / "ali", folder / "system", out) == 2
    lines = "".join(f"{u} {' '.join(map(str, s))} \n" for u, s in STATES.items())
    (out / "text").write_text(lines)
    (out / "text.gz").write_bytes(gzip.compress(lines.encode()))
    (out / "ali.1.gz").write_bytes(gzip.compress((out / "ali.ark").read_bytes()))
    assert import_alignments(out / name, folder / "system", folder / "back") == 2
    assert load_alignments(folder / "back") == STATES
    assert [o.status for o in read_table(folder / "back/table.tsv")] == ["ok", "ok"]


def test_an_import_takes_the_place_of_other_alignments_and_loads_few_at_a_time(folder, monkeypatch):
    monkeypatch.setattr("toolkit.kaldi.alignments.PER_SHARD", 2)
    imported, lines = folder / "back", [f"u{n} {n} {n}\n" for n in range(5)]
    for number in range(4):
        old = {f"u{number}": torch.tensor([15])}
        write_shard(imported / f"ali.{number:06d}.tar", old, [])
    (folder / "text").write_text("".join(lines))
    assert import_alignments(folder / "text", folder / "system", imported) == 5
    assert load_alignments(imported) == {f"u{n}": [n, n] for n in range(5)}
    assert [path.name for path in sorted(imported.iterdir())] == [
        *(f"ali.{number:06d}.tar" for number in range(3)),
        "table.tsv",
    ]
    assert [o.utterance for o in read_table(imported / "table.tsv")] == [f"u{n}" for n in range(5)]


def test_kaldi_reads_exported_alignments_and_their_states(folder):
    export_alignments(folder / "ali", folder / "system", folder / "out")
    with kaldi.SequentialInt32VectorReader(f"scp:{folder}/out/ali.scp") as reader:
        assert {key: list(states) for key, states in reader} == STATES
    rows = [line.split("\t") for line in (folder / "out/states.tsv").read_text().splitlines()]
    assert rows[0] == ["state", "phone", "position"]
    assert rows[1 + 11] == ["11", "A", "1"]
    assert len(rows) == 1 + 16


def test_phones_are_written_utterance_by_utterance(folder, monkeypatch):
    """Only the phones of one utterance are in memory."""
    read, reads_before_write = [], []
    load = AlignmentStore.load
    monkeypatch.setattr(AlignmentStore, "load", lambda self, u: read.append(u) or load(self, u))

    def write(rows, path):
        for utterance, _, _ in rows:
            reads_before_write.append((utterance, len(read)))

    monkeypatch.setattr(alignments, "write_ctm", write)
    export_alignments(folder / "ali", folder / "system", folder / "kaldi")
    assert dict(reads_before_write) == {"u1": 1, "u2": 2}


def test_phones_as_ctm(folder):
    export_alignments(folder / "ali", folder / "system", folder / "out")
    rows = [
        (e.utterance, e.token, e.start, e.duration) for e in read_ctm(folder / "out/phones.ctm")
    ]
    assert rows == [
        ("u1", "SIL", 0.0, 0.03), ("u1", "A", 0.03, 0.04), ("u1", "B", 0.07, 0.04),
        ("u2", "A", 0.0, 0.03), ("u2", "A", 0.03, 0.04), ("u2", "SIL", 0.07, 0.05),
    ]  # fmt: skip


def test_times_of_phones_give_back_the_phones(folder):
    export_alignments(folder / "ali", folder / "system", folder / "out")
    frames = {u: len(states) for u, states in STATES.items()}
    entries = read_ctm(folder / "out/phones.ctm")
    assert import_phone_times(reversed(entries), folder / "system", frames, folder / "back") == 2
    for utterance, states in load_alignments(folder / "back").items():
        assert len(states) == frames[utterance]
        phones = TOPOLOGY.phone_of_state_id
        assert [phones[s] for s in states] == [phones[s] for s in STATES[utterance]]
        times = phone_times(torch.tensor(states), TOPOLOGY)
        assert times == phone_times(torch.tensor(STATES[utterance]), TOPOLOGY)


@given(
    st.lists(st.tuples(st.sampled_from("AB"), st.integers(3, 9), st.integers(0, 6)), min_size=1),
    st.booleans(),
)
def test_states_follow_each_other_as_the_hmm_allows(spans, low_rate):
    topology = TOPOLOGY.at_low_rate() if low_rate else TOPOLOGY
    seconds = 0.03 if low_rate else 0.01
    entries, at = [], 0
    for phone, frames, gap in spans:
        at += gap
        entries.append(CtmEntry("u", "1", at * seconds, frames * seconds, phone))
        at += frames
    with TemporaryDirectory() as folder:
        system, out = Path(folder, "system"), Path(folder, "ali")
        topology.save(system / "topology.json")
        assert import_phone_times(entries, system, {"u": at + 4}, out) == 1
        states = load_alignments(out)["u"]
    assert len(states) == at + 4
    for a, b in pairwise(states):
        phone = topology.phone_of_state_id[a]
        first = topology.first_state_ids
        within = b - first[phone - 1] in topology.successors(phone, a - first[phone - 1])
        leaves = a - first[phone - 1] in topology.exit_states(phone) and b in first
        assert (topology.phone_of_state_id[b] == phone and within) or leaves, (a, b)


def test_utterances_that_cannot_be_aligned_are_in_the_table(folder):
    entries = [
        CtmEntry("good", "1", 0.0, 0.1, "A"),
        CtmEntry("odd", "1", 0.0, 0.1, "X"),
        CtmEntry("short", "1", 0.0, 0.02, "A"),
        CtmEntry("short", "1", 0.02, 0.08, "B"),
    ]
    frames = dict.fromkeys(("good", "odd", "short", "gone"), 10)
    assert import_phone_times(entries, folder / "system", frames, folder / "back") == 1
    reasons = {o.utterance: o.reason for o in read_table(folder / "back/table.tsv")}
    assert reasons["good"] == ""
    assert reasons["odd"].startswith("no phone 'X'")
    assert reasons["short"] == "phone A has 2 frames but needs at least 3"
    assert reasons["gone"] == "no phones"
    with pytest.raises(
        ToolkitError, match=r"none of 1 utterances could be aligned. The first is gone: no phones"
    ):
        import_phone_times([], folder / "system", {"gone": 3}, folder / "other")


def test_transition_ids_of_a_model_become_states(folder):
    transitions = Transitions(Senones.monophone(TOPOLOGY))
    (folder / "model").write_text(transitions.text())
    first = TOPOLOGY.first_state_ids
    state_of = {}
    for row, (phone, state) in enumerate(zip(transitions.phone, transitions.state, strict=True)):
        for number in range(transitions.first[row], transitions.first[row + 1]):
            state_of[number] = first[phone - 1] + state
    ids = {"u1": list(state_of), "u2": [*state_of][::-3]}
    lines = (f"{name} {' '.join(map(str, numbers))}\n" for name, numbers in ids.items())
    (folder / "ids.ark").write_text("".join(lines))
    system, model = folder / "system", folder / "model"
    assert import_alignments(folder / "ids.ark", system, folder / "back", model) == 2
    assert load_alignments(folder / "back") == {u: [state_of[n] for n in ids[u]] for u in ids}
    (folder / "ids.ark").write_text(f"u1 {1 + max(state_of)}\n")
    with pytest.raises(ToolkitError, match=f"has no transition id {1 + max(state_of)}:"):
        import_alignments(folder / "ids.ark", system, folder / "back", model)
    (folder / "ids.ark").write_text("u1 1 0 2\n")
    with pytest.raises(ToolkitError, match="has no transition id 0:"):
        import_alignments(folder / "ids.ark", system, folder / "back", model)
    Topology(("SIL", "SPN", "A", "B"), states=4).save(system / "topology.json")
    with pytest.raises(ToolkitError, match="differ in their phones or numbers of states"):
        import_alignments(folder / "ids.ark", system, folder / "back", model)


def test_states_of_another_system_are_an_error(folder):
    path = folder / "x.txt"
    for content, message in (
        ("u1 0 16\n", "u1: the alignment has states 0 to 16, but .* only states 0 to 15"),
        ("u1 -1\n", "u1: the alignment has states -1 to -1"),
        ("u1\n", "u1: has no frames"),
        ("u1 0\nu1 0\n", "'u1' occurs twice"),
        ("u1 zero\n", r"x\.txt: there is no integer vector"),
        ("u1 99999999999\n", r"x\.txt: there is no integer vector"),
    ):
        path.write_text(content)
        with pytest.raises(ToolkitError, match=message):
            import_alignments(path, folder / "system", folder / "back")


@given(st.binary(max_size=60))
def test_damaged_archives_raise_only_toolkit_errors(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "x.ark"
    for bytes_ in (content, b"u \0B\4" + content, gzip.compress(content)[: len(content)]):
        path.write_bytes(bytes_)
        with contextlib.suppress(ToolkitError):
            list(read_int_vectors(path))
