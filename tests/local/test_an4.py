import pytest

from local import an4
from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError, speaker_of, text_of


@pytest.fixture
def corpus(audio, tmp_path):
    """Write a part: corpus("train", {"s1/an1-s1-b": "A"}, suffix=".flac", below="wav")."""

    def write(part, texts, suffix=".flac", below="", extra=""):
        etc = tmp_path / "etc"
        etc.mkdir(exist_ok=True)
        lines = []
        for fileid, text in texts.items():
            audio(tmp_path / below / f"{fileid}{suffix}", seconds=0.2)
            lines.append(f"<s> {text} </s> ({fileid.rpartition('/')[2]})\n")
        (etc / f"an4_{part}.fileids").write_text("".join(f"{fileid}\n" for fileid in texts))
        (etc / f"an4_{part}.transcription").write_text("".join(lines) + extra)
        return CorpusConfig("an4", dev_speakers=1, test_speakers=2)

    return write


FIVE = {f"train/{s}/an{n}-{s}-b": "YES NO" for s in "abcde" for n in range(2)}


@pytest.mark.parametrize(("suffix", "below"), [(".flac", ""), (".wav", "wav")])
def test_a_corpus_without_a_test_part_is_split_by_speaker(corpus, tmp_path, suffix, below):
    splits = an4.manifests(corpus("train", FIVE, suffix, below), tmp_path)
    assert [(name, len(cuts)) for name, cuts in splits.items()] == [
        ("train", 4),
        ("dev", 2),
        ("test", 4),
    ]
    cut = splits["train"][0]
    assert (text_of(cut), cut.duration, cut.custom) == ("YES NO", 0.2, None)
    assert speaker_of(cut) == cut.id.split("-")[1]


def test_the_official_test_part_is_used(corpus, tmp_path):
    corpus("train", FIVE)
    config = corpus("test", {"test/z/an9-z-b": "STOP"})
    splits = an4.manifests(config, tmp_path)
    assert [(name, len(cuts)) for name, cuts in splits.items()] == [
        ("train", 8),
        ("dev", 2),
        ("test", 1),
    ]


def test_faults_are_kept(corpus, tmp_path):
    config = corpus("train", FIVE, extra="<s> GO </s> (an77-a-b)\n<s>  </s> (an0-b-b)\n")
    (tmp_path / "train/a/an1-a-b.flac").unlink()
    splits = an4.manifests(config, tmp_path)
    cuts = [cut for part in splits.values() for cut in part]
    faults = {cut.id: cut.custom["fault"] for cut in cuts if "fault" in (cut.custom or {})}
    assert faults == {"an77-a-b": "missing-audio", "an1-a-b": "missing-audio"}
    assert [text_of(cut) for cut in cuts if cut.id == "an0-b-b"] == ["YES NO", ""]


def test_other_folders_and_lines_are_refused(corpus, tmp_path):
    with pytest.raises(ManifestError, match="fileids"):
        an4.manifests(CorpusConfig("an4"), tmp_path)
    config = corpus("train", FIVE, extra="<s> NO NAME </s>\n")
    with pytest.raises(ManifestError, match="NO NAME"):
        an4.manifests(config, tmp_path)
