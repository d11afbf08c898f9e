import dataclasses
import shutil

import numpy as np
import pytest
import soundfile

pytest.importorskip("espeakng_loader")

from local import synthetic
from local.synthetic.config import SyntheticConfig
from local.synthetic.corpus import NOISE, SPEAKERS, WORD_TIMES, generate
from toolkit.align.ctm_textgrid import read_ctm
from toolkit.corpus.manifest import ManifestError, speaker_of, text_of
from toolkit.errors import ToolkitError

TINY = SyntheticConfig(
    train_speakers=2, train_hours=0.004, dev_hours=0.002, test_hours=0.002, lm_sentences=50
)


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthetic") / "corpus"
    return root, generate(TINY, root, jobs=1)


def test_manifests_have_the_splits_speakers_and_hours(corpus):
    root, hours = corpus
    splits = synthetic.manifests(TINY, root)
    assert list(splits) == ["train", "dev", "test"]
    for split, cuts in splits.items():
        seconds = sum(cut.duration for cut in cuts)
        assert seconds == pytest.approx(3600 * hours[f"{split}_hours"])
        requested = 3600 * getattr(TINY, f"{split}_hours")
        assert requested <= seconds < requested + 8.0 * len({speaker_of(cut) for cut in cuts})
        assert all(cut.recording.sampling_rate == 16000 for cut in cuts)
        assert all(set(cut.custom) == {"snr_db"} for cut in cuts)
        assert len({cut.custom["snr_db"] for cut in cuts}) == len(cuts)
        low, high = TINY.snr_db
        assert all(low <= cut.custom["snr_db"] <= high for cut in cuts)
    assert {speaker_of(cut) for cut in splits["train"]} == {"101", "102"}
    assert len({speaker_of(cut) for cut in splits["test"]}) == 4


def test_a_damaged_list_of_noise_is_named(corpus, tmp_path):
    root = tmp_path / "corpus"
    shutil.copytree(corpus[0], root)
    path = next(root.glob(f"*/*/{NOISE}"))
    path.write_text("u1 loud\n")
    with pytest.raises(ManifestError, match=f"{NOISE}: .*make it again"):
        synthetic.manifests(TINY, root)


def test_sentences_of_dev_and_test_are_in_no_other_text(corpus):
    root, _ = corpus
    splits = synthetic.manifests(TINY, root)
    texts = {split: {text_of(cut) for cut in cuts} for split, cuts in splits.items()}
    texts["lm"] = set((root / "lm.txt").read_text().splitlines())
    assert len(texts["lm"]) == 50
    for split in ("dev", "test"):
        assert all(not texts[split] & texts[name] for name in texts if name != split)


def test_word_times_cover_the_transcripts_in_order(corpus):
    root, _ = corpus
    for split in ("train", "dev", "test"):
        words, end = {}, {}
        for entry in read_ctm(root / "words" / f"{split}.ctm"):
            assert end.get(entry.utterance, 0.1) - 1e-6 <= entry.start < entry.end
            end[entry.utterance] = entry.end
            words.setdefault(entry.utterance, []).append(entry.token)
        texts, durations = {}, {}
        for path in (root / split).rglob("*.trans.txt"):
            for line in path.read_text().splitlines():
                id, _, texts[id] = line.partition(" ")
                durations[id] = soundfile.info(path.parent / f"{id}.flac").duration
        assert {id: " ".join(tokens) for id, tokens in words.items()} == texts
        assert list(words) == sorted(words)
        for id, time in end.items():
            assert 0.1 < durations[id] - time < 0.45


def test_word_times_match_the_final_audio(tmp_path):
    quiet = dataclasses.replace(
        TINY, snr_db=(60.0, 60.0), t60_seconds=(0.05, 0.05), direct_to_reverberant_db=(50.0, 50.0)
    )
    generate(quiet, tmp_path)
    entries = {}
    for entry in read_ctm(tmp_path / "words" / "test.ctm"):
        entries.setdefault(entry.utterance, []).append(entry)
    assert len(entries) >= 4
    (echoing,) = (speaker.id for speaker in SPEAKERS["test"] if speaker.voice.name == "en-us+f3")
    for id, words in entries.items():
        (path,) = tmp_path.rglob(f"{id}.flac")
        samples, rate = soundfile.read(path)
        level = np.convolve(samples**2, np.ones(32) / 32, "same")  # 2 ms
        loud = np.flatnonzero(level > 1e-4 * level.max())
        assert loud[0] / rate == pytest.approx(words[0].start, abs=0.005)
        if not id.startswith(echoing):
            assert loud[-1] / rate == pytest.approx(words[-1].end, abs=0.01)


def test_bytes_do_not_depend_on_jobs_or_on_interruptions(corpus, tmp_path):
    root, _ = corpus
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    shutil.rmtree(copy / "train" / "101")
    (copy / "test" / "301").rename(copy / "test" / ".301.partial")
    progress = []
    (copy / "dev" / "202" / WORD_TIMES).unlink()
    generate(TINY, copy, jobs=2, progress=lambda *args: progress.append(args))
    assert contents(copy) == contents(root)
    assert progress == [(10, 12), (11, 12), (12, 12)]


def test_a_corpus_of_other_settings_is_not_mixed_in(corpus):
    root, _ = corpus
    with pytest.raises(ToolkitError, match="other settings"):
        generate(dataclasses.replace(TINY, seed=2), root)
    generate(dataclasses.replace(TINY, hours=0.001, rotation=1), root)


def test_voices_differ():
    speakers = [speaker for part in SPEAKERS.values() for speaker in part]
    assert len({speaker.id for speaker in speakers}) == len(speakers)
    assert len({(speaker.voice, speaker.tract) for speaker in speakers}) == len(speakers)
    assert len(SPEAKERS["train"]) >= 16
    training_voices = {speaker.voice.name for speaker in SPEAKERS["train"]}
    assert not training_voices & {s.voice.name for name in ("dev", "test") for s in SPEAKERS[name]}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("train_speakers", 0),
        ("train_speakers", 99),
        ("dev_hours", 0.0),
        ("snr_db", (20.0, 5.0)),
        ("t60_seconds", (0.0, 0.3)),
    ],
)
def test_invalid_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(TINY, **{field: value})
