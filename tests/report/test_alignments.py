"""Alignments of training utterances on the page."""

import math
import re
from dataclasses import replace

import pytest
import torch

from tests.report.conftest import HOSTILE
from toolkit.align.store import Outcome, write_shard, write_table
from toolkit.align.times import TimedToken
from toolkit.hmm.topology import Topology
from toolkit.report.error_analysis import word_times_from_phones, worst_alignments
from toolkit.report.media import Clip
from toolkit.report.pages import Budget
from toolkit.report.run_data import read_splits
from toolkit.report.run_folder import RunFolder

PHONES = ("SIL", "AH_S", "K_B", "AE_I", "T_E", "SPN")
CLIP = Clip(0.3, "data:audio/flac;base64,", "data:image/png;base64,")


@pytest.fixture
def topology():
    return Topology(PHONES)


def spoken(*phones):
    """Phones of 0.1 s each."""
    return [TimedToken(phone, n / 10, n / 10 + 0.1) for n, phone in enumerate(phones)]


def test_phones_are_joined_to_words_across_no_pause(topology):
    phones = spoken("SIL", "AH_S", "K_B", "AE_I", "T_E", "SIL", "SPN", "SIL")
    found = word_times_from_phones(phones, ["A", "CAT", "XYZ"], topology)
    times = [(e.token, round(e.start_s, 3), round(e.end_s, 3)) for e in found]
    assert times == [("A", 0.1, 0.2), ("CAT", 0.2, 0.5), ("XYZ", 0.6, 0.7)]
    assert word_times_from_phones(phones, ["A", "CAT"], topology) == []


def states_of(topology, *phones):
    """Every state of these phones, 3 frames each."""
    ids = [n for p in phones for n in range(len(topology.phone_of_state_id))
           if topology.phone_of_state_id[n] == PHONES.index(p) + 1]  # fmt: skip
    return torch.tensor(ids).repeat_interleave(3)


def test_the_least_likely_utterances_are_shown_with_words_and_phones(made_up, topology):
    made_up.data()
    (made_up.root / "sat").mkdir()
    topology.save(made_up.root / "sat/topology.json")
    states = states_of(topology, "SIL", "K_B", "AE_I", "T_E", "AH_S", "SPN")
    ids = ["train-0", "train-1", "train-2"]
    outcomes = [
        Outcome(id, "ok", -value, 10.0, "") for id, value in zip(ids, (9, 30, 20), strict=True)
    ]
    outcomes.append(Outcome("train-3", "failed", math.nan, 0.0, HOSTILE))
    shard = made_up.root / "ali/ali.000000.tar"
    write_shard(shard, {id: states.clone() for id in ids}, outcomes)
    write_table(made_up.root / "ali/table.tsv", outcomes)
    run = RunFolder.open(made_up.root)
    splits = read_splits(run)
    html = worst_alignments(run, splits, 2, Budget(10**6), lambda split, id: CLIP)
    assert re.findall(r"<code>([\w-]+)</code>", html) == ["train-1", "train-2"]
    assert "3 utterances; 1 failed" in html
    tiers = re.findall(r'<div class="times".*?</div>', html)
    shown = [re.findall(r">([^<>]+)</span>", tier) for tier in tiers]
    assert shown[0] == ["on", "the", "mat"]
    assert shown[1] == ["K", "AE", "T", "AH", "SPN"]
    assert HOSTILE not in html
    assert worst_alignments(run, splits, 2, Budget(10), lambda split, id: CLIP) == ""
    shared = replace(splits[1], utterances=dict(splits[0].utterances))
    heard = []
    worst_alignments(
        run, [splits[0], shared], 2, Budget(10**6), lambda split, id: heard.append(split.name)
    )
    assert set(heard) == {"train"}


def test_no_more_recordings_are_read_than_could_be_shown(made_up, topology):
    """Where the audio is gone, or the page full, the others would be tried in vain."""
    made_up.data()
    (made_up.root / "sat").mkdir()
    topology.save(made_up.root / "sat/topology.json")
    ids = [f"train-{n}" for n in range(4)]
    outcomes = [Outcome(id, "ok", -float(n), 10.0, "") for n, id in enumerate(ids)]
    states = states_of(topology, "SIL", "K_B", "AE_I", "T_E")
    shard = made_up.root / "ali/ali.000000.tar"
    write_shard(shard, {id: states.clone() for id in ids}, outcomes)
    write_table(made_up.root / "ali/table.tsv", outcomes)
    run = RunFolder.open(made_up.root)
    for media, room in ((None, 10**6), (CLIP, 10)):
        read, budget = [], Budget(room)

        def clip(split, id, media=media, read=read):
            read.append(id)
            return media

        assert worst_alignments(run, read_splits(run), 2, budget, clip) == ""
        assert read == ["train-3", "train-2"]
        assert budget.refused == (2 if media else 0)
