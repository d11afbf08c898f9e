import pytest

from local import librispeech
from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError, audio_of, speaker_of, text_of


@pytest.fixture
def chapter(audio, tmp_path):
    """Write a chapter: chapter("train-mini", "12", ["A B", "C"], suffix=".wav") -> its folder."""

    def write(part, speaker, texts, suffix=".flac"):
        folder = tmp_path / "LibriSpeech" / part / speaker / "7"
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for number, text in enumerate(texts):
            audio(folder / f"{speaker}-7-{number:04d}{suffix}", seconds=0.1, seed=number)
            lines.append(f"{speaker}-7-{number:04d} {text}\n")
        (folder / f"{speaker}-7.trans.txt").write_text("".join(lines))
        return folder

    return write


def read(root, **options):
    return librispeech.manifests(CorpusConfig("librispeech", **options), root)


@pytest.mark.parametrize("below", ["", "LibriSpeech"])
def test_any_parts_from_the_root_or_its_parent(chapter, tmp_path, below):
    chapter("train-clean-100", "12", ["A B"])
    chapter("train-mini", "3", ["C"], suffix=".wav")
    chapter("dev-mini", "4", ["D"])
    chapter("test-other", "5", ["E"])
    splits = read(tmp_path / below)
    assert {name: [cut.id for cut in cuts] for name, cuts in splits.items()} == {
        "train": ["12-7-0000", "3-7-0000"],
        "dev-mini": ["4-7-0000"],
        "test-other": ["5-7-0000"],
    }
    cut = splits["train"][0]
    assert (text_of(cut), speaker_of(cut), cut.duration, cut.custom) == ("A B", "12", 0.1, None)
    assert audio_of(cut) == str(tmp_path / "LibriSpeech/train-clean-100/12/7/12-7-0000.flac")


def test_patterns_choose_parts(chapter, tmp_path):
    for number, part in enumerate(("train-a", "train-b", "dev-a", "dev-b")):
        chapter(part, str(number), ["A"])
    splits = read(tmp_path, train="train-b", dev="dev-a,dev-b")
    assert [(name, len(cuts)) for name, cuts in splits.items()] == [
        ("train", 1),
        ("dev-a", 1),
        ("dev-b", 1),
    ]


def test_without_a_dev_part_speakers_are_held_out(chapter, tmp_path):
    for speaker in ("1", "2", "3"):
        chapter("train-mini", speaker, ["A", "B"])
    splits = read(tmp_path, dev_speakers=1)
    assert [(name, len(cuts)) for name, cuts in splits.items()] == [("train", 4), ("dev", 2)]


def test_faults_are_kept(chapter, tmp_path):
    folder = chapter("train-mini", "1", ["A", "B", "C", "D"])
    chapter("dev-mini", "2", ["A"])
    trans = folder / "1-7.trans.txt"
    lines = trans.read_text().splitlines(keepends=True)
    trans.write_text("".join([lines[0], lines[1], lines[1], lines[2], "1-7-0009 Z\n", "\n"]))
    (folder / "1-7-0002.flac").write_bytes(b"")
    cuts = read(tmp_path)["train"]
    assert [(cut.id, (cut.custom or {}).get("fault")) for cut in cuts] == [
        ("1-7-0000", None),
        ("1-7-0001", None),
        ("1-7-0001", None),
        ("1-7-0002", "unreadable-audio"),
        ("1-7-0003", "missing-transcript"),
        ("1-7-0009", "missing-audio"),
    ]


def test_an_empty_root_is_refused(tmp_path):
    with pytest.raises(ManifestError, match="train-clean-100"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("patterns", "parts"),
    [
        ({}, ["dev-clean-2", "train-clean-5"]),
        (
            {"train": "train-clean-100", "dev": "dev-clean", "test": "test-*"},
            ["dev-clean", "test-clean", "test-other", "train-clean-100"],
        ),
        (
            {"train": "train-clean-*,train-other-*", "test": "test-clean"},
            [
                "dev-clean",
                "dev-other",
                "test-clean",
                "train-clean-100",
                "train-clean-360",
                "train-other-500",
            ],
        ),
        (
            {"train": "train-clean-5", "dev": "dev-clean"},
            ["dev-clean", "test-clean", "test-other", "train-clean-5"],
        ),
    ],
)
def test_parts_are_downloaded(chapter, tmp_path, monkeypatch, patterns, parts):
    requested = []

    def download(target, dataset_parts):
        requested.extend(dataset_parts)
        for part in dataset_parts:
            chapter(part, str(len(part)), ["A"])

    monkeypatch.setattr("lhotse.recipes.download_librispeech", download)
    corpus = CorpusConfig("librispeech", **patterns)
    assert librispeech.fetch(corpus, tmp_path) == {"parts": len(parts)}
    assert sorted(requested) == parts
    splits = {"train" if part.startswith("train") else part for part in parts}
    assert {*librispeech.manifests(corpus, tmp_path)} == splits


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    def download(target, dataset_parts):
        raise OSError("no network")

    monkeypatch.setattr("lhotse.recipes.download_librispeech", download)
    with pytest.raises(ManifestError, match=r"no network.*corpus\.root=FOLDER"):
        librispeech.fetch(CorpusConfig("librispeech"), tmp_path)
