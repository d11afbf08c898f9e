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
    out, progress = tmp_path_factory.mktemp("self"), []
    headline = system.label(
        unlabelled.cepstra, out, CONFIG, progress=lambda *call: progress.append(call)
    )
    return out, headline, progress


def test_the_most_confident_utterances_keep_their_recognised_words(done, unlabelled):
    out, headline, progress = done
    rows = [line.split("\t") for line in (out / "confidence.tsv").read_text().splitlines()[1:]]
    assert sorted(row[0] for row in rows) == sorted(unlabelled.transcripts)
    selected = [row for row in rows if row[3] == "1"]
    assert min(float(row[2]) for row in selected) >= max(float(r[2]) for r in rows if r[3] == "0")
    assert headline["utterances"] == len(rows) == 18
    assert headline["kept"] == len(selected)
    assert 0.5 < headline["kept_hours"] / headline["hours"] < 0.75
    spoken = {name: " ".join(words) for name, words in unlabelled.transcripts.items()}
    sure = score({row[0]: spoken[row[0]] for row in selected}, {row[0]: row[4] for row in selected})
    assert sure.errors < 0.25 * sure.ref_units
    assert progress[-1][0] == progress[-1][1] == len(progress)


def test_training_takes_the_selected_utterances_and_their_alignments(
    done, system, unlabelled, tmp_path
):
    out, headline, _ = done
    store, alignments = self_labelled(unlabelled.cepstra, out, system.senones)
    assert len(store.ids) == headline["kept"]
    texts = dict(line.split(" ", 1) for line in (out / "text").read_text().splitlines())
    assert {name: text_of(store.cut(name)) for name in store.ids} == texts
    write_shard(tmp_path / "ali.000000.tar", unlabelled.states, [])
    truth = LowRateAlignments(AlignmentStore(tmp_path), unlabelled.topology, system.senones)
    agreed = total = 0
    for name in alignments.ids:
        senones = alignments.load(name)
        assert len(senones) == store.num_frames(name)
        agreed, total = agreed + int((senones == truth.load(name)).sum()), total + len(senones)
    assert agreed > 0.7 * total
    config = replace(CE, epochs=1, valid_utterances=0)
    training = system.train(tmp_path / "model", [store], [alignments], config)
    assert training["utterances"] == 36 + len(alignments.ids)


def test_finished_shards_are_reused_and_transcripts_not_read(done, system, unlabelled, tmp_path):
    out, headline, _ = done
    assert system.label(unlabelled.cepstra, out, CONFIG) == headline
    line = {"utterance": "anna-00", "frames": 90, "text": "AX AX", "confidence": 0.99}
    (tmp_path / "recognised").mkdir()
    (tmp_path / "recognised/recognised.000000.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "recognised/recognised.000001.jsonl").write_text("")
    relabelled = system.label(unlabelled.cepstra, tmp_path, CONFIG)
    assert (relabelled["utterances"], relabelled["kept"]) == (1, 1)
    assert (tmp_path / "text").read_text() == "anna-00 AX AX\n"


def test_confidences_are_calibrated(done, system, unlabelled, tmp_path):
    Calibration(-8.0, 1.0).save(tmp_path / "calibration.json")
    config = replace(CONFIG, threshold=0.9)
    with pytest.raises(TrainingDataError, match="lower the threshold"):
        system.label(
            unlabelled.cepstra, tmp_path / "out", config, calibration=tmp_path / "calibration.json"
        )


def test_the_most_confident_utterances_are_selected():
    recognised = [
        Recognised("a", 10, "X", 0.5),
        Recognised("b", 30, "X Y", 0.9),
        Recognised("c", 10, "", 0.0),
        Recognised("d", 50, "Y", 0.7),
    ]

    def names(**changes):
        return [u.utterance for u in most_confident(recognised, SelfTrainingConfig(**changes))]

    assert names(share=0.3) == ["b"]
    assert names(share=0.5) == ["b", "d"]
    assert names(share=1.0) == ["a", "b", "d"]
    assert names(share=1.0, threshold=0.6) == ["b", "d"]
    assert names(share=0.3, threshold=0.95 - 0.06) == ["b"]


def test_words_may_hold_unicode_line_separators(tmp_path):
    recognised = [Recognised("u1", 9, "A\u2028B C", 1.0), Recognised("u2", 9, "D\x85", 1.0)]
    write_selection(recognised, recognised, tmp_path)
    assert read_texts(tmp_path / "text") == {"u1": "A\u2028B C", "u2": "D\x85"}


@pytest.mark.parametrize("share", [0.1, 0.25, 0.4, 0.49])
def test_equal_confidences_are_drawn_at_random_up_to_the_share(share):
    """In half of the utterances all paths agree, so their confidences are 1."""
    recognised = [
        Recognised(f"u{n:03d}", 5 + n % 7, "X", 1.0 if n % 2 else 0.8) for n in range(200)
    ]
    selected = most_confident(recognised, SelfTrainingConfig(share=share))
    frames, total = sum(u.frames for u in selected), sum(u.frames for u in recognised)
    assert 0 <= frames - share * total < 12
    assert all(u.confidence == 1 for u in selected)
    assert [u.utterance for u in selected] == sorted(u.utterance for u in selected)
    middle = sum(u.utterance < "u100" for u in selected) / len(selected)
    assert 0.2 < middle < 0.8
    again = most_confident(recognised[::-1], SelfTrainingConfig(share=share))
    assert again == selected[::-1]


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"threshold": 1.5}, {"samples": 0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SelfTrainingConfig(**wrong)
