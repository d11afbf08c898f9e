import json
from pathlib import Path

import pytest

from local import kaldi
from toolkit.corpus.check import check
from toolkit.corpus.config import CheckConfig, CorpusConfig
from toolkit.corpus.manifest import ManifestError, read_cuts, rewrite_texts, write_cuts
from toolkit.lang.text_policy import TextPolicy


@pytest.fixture
def root(audio, tmp_path):
    for part, speakers in {"train": "abc", "dev": "d", "test": "e", "trash": "f"}.items():
        folder = tmp_path / "data" / part
        folder.mkdir(parents=True)
        ids = [f"{speaker}{number}" for speaker in speakers for number in range(2)]
        for number, id in enumerate(ids):
            audio(folder / f"{id}.flac", seconds=1.0, seed=10 * len(part) + number)
        (folder / "wav.scp").write_text("".join(f"{id} {id}.flac\n" for id in ids))
        (folder / "text").write_text("".join(f"{id} one two\n" for id in ids))
        (folder / "utt2spk").write_text("".join(f"{id} {id[0]}\n" for id in ids))
    return tmp_path / "data"


def test_parts_become_splits(root):
    splits = kaldi.manifests(CorpusConfig("kaldi"), root)
    assert {name: [cut.id for cut in cuts] for name, cuts in splits.items()} == {
        "train": ["a0", "a1", "b0", "b1", "c0", "c1"],
        "dev": ["d0", "d1"],
        "test": ["e0", "e1"],
    }


def test_pipes_run_only_when_allowed(root, tmp_path):
    (root / "dev" / "wav.scp").write_text(f"d0 cat {root}/dev/d0.flac |\nd1 d1.flac\n")
    refused = kaldi.manifests(CorpusConfig("kaldi"), root)["dev"]
    assert refused[0].custom["fault"] == "refused-pipe"
    pipes = tmp_path / "pipes"
    allowed = CorpusConfig("kaldi", allow_pipes=True, pipes=pipes)
    cut = kaldi.manifests(allowed, root)["dev"][0]
    assert (cut.duration, cut.custom) == (1.0, None)
    assert Path(cut.recording.sources[0].source).parent == pipes
    with pytest.raises(ManifestError, match=r"corpus\.pipes=FOLDER"):
        kaldi.manifests(CorpusConfig("kaldi", allow_pipes=True), root)


def test_a_single_directory_is_divided_into_splits(root):
    corpus = CorpusConfig("kaldi", dev_speakers=1, test_speakers=1)
    splits = kaldi.manifests(corpus, root / "train")
    assert {name: len(cuts) for name, cuts in splits.items()} == {"train": 2, "dev": 2, "test": 2}


def test_a_root_without_directories_is_refused(tmp_path):
    with pytest.raises(ManifestError, match=r"wav\.scp"):
        kaldi.manifests(CorpusConfig("kaldi"), tmp_path)


def test_a_corpus_full_of_faults_is_read_checked_and_left_usable(root, audio, truncate, tmp_path):
    train = root / "train"
    faults = {
        "cut": "truncated-audio",
        "empty": "unreadable-audio",
        "phone": "other-rate",
        "mute": "missing-transcript",
        "foreign": "all-oov",
        "fifty": "too-short",
        "pipe": "refused-pipe",
        "a0": "duplicate-id",
    }
    truncate(audio(train / "cut.flac", seconds=3.0, seed=91))
    (train / "empty.flac").touch()
    audio(train / "phone.wav", seconds=2.0, rate=8000, channels=2, seed=92)
    for number, id in enumerate(("mute", "foreign", "fifty")):
        audio(train / f"{id}.flac", seed=93 + number)
    texts = {"foreign": "CUATRO CINCO", "fifty": "ONE " * 50}
    with open(train / "wav.scp", "a") as wav, open(train / "text", "a") as text:
        for id in faults:
            source = {"phone": "phone.wav", "pipe": "sox x.wav -t wav - |"}.get(id, f"{id}.flac")
            wav.write(f"{id} {source}\n")
            if id != "mute":
                text.write(f"{id} {texts.get(id, 'ONE TWO')}\n")
    splits = kaldi.manifests(CorpusConfig("kaldi"), root)
    paths = {split: tmp_path / f"{split}.jsonl" for split in splits}
    for split, cuts in splits.items():
        rewrite_texts(cuts, TextPolicy().transcript, TextPolicy().found_tags)
        write_cuts(cuts, paths[split])
    headline = check(paths, {"ONE": 3, "TWO": 2}, tmp_path / "check", CheckConfig())
    findings = json.loads((tmp_path / "check" / "report.json").read_text())["findings"]
    faults_of_train = {(item["id"], item["kind"]) for item in findings if item["split"] == "train"}
    assert set(faults.items()) <= faults_of_train
    report = (tmp_path / "check" / "report.txt").read_text()
    assert all(f"  train  {id}  " in report for id in faults)
    remaining_ids = [
        cut.id for cut in read_cuts(paths["train"], tmp_path / "check" / "excluded.tsv")
    ]
    assert sorted(remaining_ids) == ["a0", "a1", "b0", "b1", "c0", "c1", "foreign", "phone"]
    assert headline["excluded"] == 6
