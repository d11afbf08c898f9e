"""Recognising drawn speech, selecting the most confident utterances, aligning them."""

import json
from dataclasses import replace

import pytest

from tests.ssl.recogniser import CE
from toolkit.align.config import CorpusAlignConfig
from toolkit.align.store import AlignmentStore, LowRateAlignments, write_shard
from toolkit.corpus.manifest import text_of
from toolkit.decode.words import Calibration
from toolkit.score.wer import score
from toolkit.ssl.config import SelfTrainingConfig
from toolkit.ssl.recognition import (
    Recognised,
    most_confident,
    read_texts,
    self_labelled,
    write_selection,
)
from toolkit.train.errors import TrainingDataError

CONFIG = SelfTrainingConfig(share=0.6, samples=40, align=CorpusAlignConfig(max_failed=0.9))


@pytest.fixture(scope="module")
def done(system, unlabelled, tmp_path_factory):
    out, told = tmp_path_factory.mktemp("self"), []
    headline = system.label(
        unlabelled.cepstra, out, CONFIG, progress=lambda *call: told.append(call)
    )
    return out, headline, told


def test_the_surest_are_kept_with_the_words_recognised(done, unlabelled):
    out, headline, told = done
    rows = [line.split("\t") for line in (out / "confidence.tsv").read_text().splitlines()[1:]]
    assert sorted(row[0] for row in rows) == sorted(unlabelled.transcripts)
    kept = [row for row in rows if row[3] == "1"]
    assert min(float(row[2]) for row in kept) >= max(float(r[2]) for r in rows if r[3] == "0")
    assert headline["utterances"] == len(rows) == 18
    assert headline["kept"] == len(kept)
    assert 0.5 < headline["kept_hours"] / headline["hours"] < 0.75
    spoken = {name: " ".join(words) for name, words in unlabelled.transcripts.items()}
    sure = score({row[0]: spoken[row[0]] for row in kept}, {row[0]: row[4] for row in kept})
    assert sure.errors < 0.25 * sure.ref_units
    assert told[-1][0] == told[-1][1] == len(told)


def test_what_training_takes(done, system, unlabelled, tmp_path):
    out, headline, _ = done
    store, alignments = self_labelled(unlabelled.cepstra, out, system.senones)
    assert len(store.ids) == headline["kept"]
    texts = dict(line.split(" ", 1) for line in (out / "text").read_text().splitlines())
    assert {name: text_of(store.cut(name)) for name in store.ids} == texts
    write_shard(tmp_path / "ali.000000.tar", unlabelled.states, [])
    truth = LowRateAlignments(AlignmentStore(tmp_path), unlabelled.topology, system.senones)
    agreed = total = 0
    for name in alignments.ids:
        found = alignments.load(name)
        assert len(found) == store.num_frames(name)
        agreed, total = agreed + int((found == truth.load(name)).sum()), total + len(found)
    assert agreed > 0.7 * total
    config = replace(CE, epochs=1, valid_utterances=0)
    found = system.train(tmp_path / "model", [store], [alignments], config)
    assert found["utterances"] == 36 + len(alignments.ids)


def test_finished_shards_are_kept_and_the_transcripts_not_read(done, system, unlabelled, tmp_path):
    out, headline, _ = done
    assert system.label(unlabelled.cepstra, out, CONFIG) == headline
    line = {"utterance": "anna-00", "frames": 90, "text": "AX AX", "confidence": 0.99}
    (tmp_path / "recognised").mkdir()
    (tmp_path / "recognised/recognised.000000.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "recognised/recognised.000001.jsonl").write_text("")
    found = system.label(unlabelled.cepstra, tmp_path, CONFIG)
    assert (found["utterances"], found["kept"]) == (1, 1)
    assert (tmp_path / "text").read_text() == "anna-00 AX AX\n"


def test_calibrated_confidences(done, system, unlabelled, tmp_path):
    Calibration(-8.0, 1.0).save(tmp_path / "calibration.json")
    config = replace(CONFIG, threshold=0.9)
    with pytest.raises(TrainingDataError, match="lower the threshold"):
        system.label(
            unlabelled.cepstra, tmp_path / "out", config, calibration=tmp_path / "calibration.json"
        )


def test_surest():
    found = [
        Recognised("a", 10, "X", 0.5),
        Recognised("b", 30, "X Y", 0.9),
        Recognised("c", 10, "", 0.0),
        Recognised("d", 50, "Y", 0.7),
    ]

    def names(**changes):
        return [one.utterance for one in most_confident(found, SelfTrainingConfig(**changes))]

    assert names(share=0.3) == ["b"]
    assert names(share=0.5) == ["b", "d"]
    assert names(share=1.0) == ["a", "b", "d"]
    assert names(share=1.0, threshold=0.6) == ["b", "d"]
    assert names(share=0.3, threshold=0.95 - 0.06) == ["b"]


def test_words_may_hold_what_ends_lines_elsewhere(tmp_path):
    found = [Recognised("u1", 9, "A\u2028B C", 1.0), Recognised("u2", 9, "D\x85", 1.0)]
    write_selection(found, found, tmp_path)
    assert read_texts(tmp_path / "text") == {"u1": "A\u2028B C", "u2": "D\x85"}


@pytest.mark.parametrize("share", [0.1, 0.25, 0.4, 0.49])
def test_equals_are_taken_by_chance_until_they_make_up_the_share(share):
    """All paths of half of the utterances agree: their confidences are all 1."""
    found = [Recognised(f"u{n:03d}", 5 + n % 7, "X", 1.0 if n % 2 else 0.8) for n in range(200)]
    kept = most_confident(found, SelfTrainingConfig(share=share))
    frames, total = sum(one.frames for one in kept), sum(one.frames for one in found)
    assert 0 <= frames - share * total < 12
    assert all(one.confidence == 1 for one in kept)
    assert [one.utterance for one in kept] == sorted(one.utterance for one in kept)
    middle = sum(one.utterance < "u100" for one in kept) / len(kept)
    assert 0.2 < middle < 0.8
    again = most_confident(found[::-1], SelfTrainingConfig(share=share))
    assert again == kept[::-1]


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"threshold": 1.5}, {"samples": 0}])
def test_impossible_settings(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SelfTrainingConfig(**wrong)
