"""Alignments on disk."""

import math

import pytest
import torch

from toolkit.align.store import (
    AlignmentStore,
    DamagedAlignmentsError,
    MissingAlignmentError,
    Outcome,
    read_table,
    write_shard,
    write_table,
)

OUTCOMES = [
    Outcome("b/1.x", "ok", -61.25, 10.0, ""),
    Outcome("a", "retried", -70.5, 40.0, ""),
    Outcome("c", "failed", float("nan"), 0.0, "5 frames, the transcript needs 27"),
]


def test_shards_and_their_outcomes_round_trip(tmp_path):
    states = {"b/1.x": torch.tensor([0, 0, 4, 70_000]), "a": torch.arange(6)[::2]}
    write_shard(tmp_path / "ali.000000.tar", states, OUTCOMES)
    write_shard(tmp_path / "ali.000001.tar", {"z": torch.tensor([7])}, [])
    write_shard(tmp_path / "ali.000002.tar", {}, OUTCOMES[2:])
    store = AlignmentStore(tmp_path)
    assert store.ids == ["a", "b/1.x", "z"]
    for utterance, expected in states.items():
        assert torch.equal(store.load(utterance), expected)
    assert store.load("z").dtype == torch.int64
    assert [store.num_frames(name) for name in store.ids] == [3, 4, 1]
    outcomes = read_table(tmp_path / "ali.000000.tsv")
    assert outcomes[:2] == OUTCOMES[:2]
    assert math.isnan(outcomes[2].log_likelihood_per_frame)
    assert outcomes[2].reason == OUTCOMES[2].reason


def test_frames_are_counted_without_reading_states(tmp_path):
    write_shard(tmp_path / "ali.000000.tar", {"a": torch.arange(50_000), "b": torch.arange(3)}, [])
    path = tmp_path / "ali.000000.tar"
    store = AlignmentStore(tmp_path)
    assert store.ids == ["a", "b"]
    # Cut off behind the header of the first array: its values are no longer there.
    path.write_bytes(path.read_bytes()[: 512 + 128])
    assert store.num_frames("a") == 50_000
    with pytest.raises(DamagedAlignmentsError, match="a cannot be read"):
        store.load("a")


def test_a_folder_without_alignments_says_so(tmp_path):
    (tmp_path / "ali.000000.safetensors").touch()
    with pytest.raises(MissingAlignmentError, match=r"no alignments \(ali\.\*\.tar\)"):
        AlignmentStore(tmp_path).load("c")


def test_a_missing_alignment_names_utterance_and_table(tmp_path):
    write_shard(tmp_path / "ali.000000.tar", {"a": torch.tensor([1])}, [])
    with pytest.raises(MissingAlignmentError, match=r"c has no alignment in .* table\.tsv"):
        AlignmentStore(tmp_path).load("c")
    with pytest.raises(MissingAlignmentError, match=r"c has no alignment in .* table\.tsv"):
        AlignmentStore(tmp_path).num_frames("c")


def test_a_table_has_a_header_and_a_line_for_each(tmp_path):
    write_table(tmp_path / "table.tsv", OUTCOMES)
    lines = (tmp_path / "table.tsv").read_text().splitlines()
    assert lines[0].split("\t") == [
        "utterance",
        "status",
        "log_likelihood_per_frame",
        "beam",
        "reason",
    ]
    assert [line.split("\t")[0] for line in lines[1:]] == ["b/1.x", "a", "c"]
    write_table(tmp_path / "empty.tsv", [])
    assert read_table(tmp_path / "empty.tsv") == []
