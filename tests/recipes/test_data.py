"""Steps with data that several recipes share."""

from dataclasses import replace
from glob import glob
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from tests.dummies import setting_of
from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import read_cuts, speaker_of, text_of
from toolkit.lang.config import LangConfig


class Recorder:
    """A run that records its declared inputs."""

    def __init__(self):
        self.needed = []

    def need(self, path):
        self.needed.append(path)

    def need_matches(self, pattern):
        self.needed += map(Path, sorted(glob(str(pattern))))


def test_files_folders_and_patterns_of_the_user_are_recorded(tmp_path):
    from recipes.steps.data import need_user_files

    for name in ("b.txt", "a.txt", "c.gz"):
        (tmp_path / name).touch()
    run = Recorder()
    sources = (None, tmp_path / "c.gz", tmp_path, tmp_path / "*.txt", tmp_path / "missing")
    need_user_files(run, *sources)
    assert run.needed == [tmp_path / "c.gz", tmp_path, tmp_path / "a.txt", tmp_path / "b.txt"]


class FromKaldi:
    """A run on a Kaldi data directory whose wav.scp has paths relative to it, some upwards."""

    def __init__(self, root):
        self.needed, data = [], root / "data"
        ids = [f"{speaker}{n}" for speaker in "abcde" for n in range(2)]
        sources = [f"{'in' if id < 'c' else '../wav'}/{id}.wav" for id in ids]
        for source in sources:
            (data / source).resolve().parent.mkdir(parents=True, exist_ok=True)
            soundfile.write((data / source).resolve(), np.zeros(1600), 16000)
        for name, values in (("wav.scp", sources), ("text", "w" * len(ids))):
            lines = [f"{id} {value}\n" for id, value in zip(ids, values, strict=True)]
            (data / name).write_text("".join(lines))
        (data / "utt2spk").write_text("".join(f"{id} {id[0]}\n" for id in ids))
        corpus = CorpusConfig("kaldi", data, dev_speakers=1, test_speakers=1)
        self.config, self.data = SimpleNamespace(corpus=corpus), data
        self.setting = setting_of(self.config)

    def need(self, path, compare="content"):
        self.needed.append(path)
        return path


def test_folders_of_audio_above_the_corpus_are_inputs(tmp_path):
    """Otherwise new recordings there would keep the old durations."""
    from recipes.steps.data import read_corpus

    run = FromKaldi(tmp_path)
    assert sum(map(len, read_corpus(run).values())) == 10
    assert run.needed == [run.data, run.data / "../wav"]


def test_rooms_are_simulated_again_from_other_recordings_in_any_folder(tmp_path, monkeypatch):
    from recipes.steps import farfield

    run = FromKaldi(tmp_path)
    run.config.rooms = SimpleNamespace(noise=None, responses=None)
    run.make, run.jobs, run.progress = (lambda name: tmp_path / name), 1, None
    monkeypatch.setattr(farfield.farfield_sets, "make_farfield", lambda clean, *_: len(clean))
    assert farfield.make_rooms(run) == 3
    assert run.needed == [run.data, run.data / "../wav"]


@pytest.mark.parametrize(("speakers", "expected"), [("recording", 8), ("auto", 1)])
def test_recordings_without_speakers_are_clustered_if_configured(tmp_path, speakers, expected):
    from recipes.steps.data import write_corpus

    run = FromKaldi(tmp_path)
    rng = np.random.default_rng(0)
    for path in tmp_path.rglob("*.wav"):
        soundfile.write(path, 0.1 * rng.standard_normal(24_000), 16000)
    (run.data / "utt2spk").unlink()
    corpus = replace(run.config.corpus, speakers=speakers, hold_out="utterances")
    run.config.corpus, run.jobs = corpus, 1
    run.make = lambda name: tmp_path / name
    write_corpus(run)
    cuts = read_cuts(tmp_path / "data/train.jsonl")
    assert (len(cuts), len({speaker_of(cut) for cut in cuts})) == (8, expected)


@pytest.mark.parametrize("text", ["transcripts", "lm"])
def test_lattices_have_the_language_model_of_the_transcripts_or_of_the_text(tmp_path, text):
    from recipes.steps.data import lattice_lm_config
    from recipes.steps.settings import HybridConfig
    from toolkit.lang.config import NgramConfig

    books = tmp_path / "books.txt"
    books.touch()
    run = Recorder()
    run.config = HybridConfig(
        lm=NgramConfig(text=books), lattice_lm=NgramConfig(order=1), lattice_text=text
    )
    run.setting = setting_of(run.config)
    expected = NgramConfig(order=1, text=books if text == "lm" else None)
    assert lattice_lm_config(run) == expected
    assert run.needed == ([books] if text == "lm" else [])


class WithTags(FromKaldi):
    """Like `FromKaldi`, with tags in the transcripts; the lexicon has some of them."""

    def __init__(self, root, normaliser, tags):
        super().__init__(root)
        text = (self.data / "text").read_text().replace(" w", " so [noise] {LG} w")
        (self.data / "text").write_text(text)
        (root / "lexicon").write_text("so S O\nw W\n{LG} L\n")
        self.config.lang = LangConfig(root / "lexicon", normaliser, tags)

    def make(self, name):
        folder = self.data.parent / f"{name}-out"
        folder.mkdir()
        return folder

    def need(self, path, compare="content"):
        self.needed.append(path)
        return path


@pytest.mark.parametrize(
    ("normaliser", "tags", "train", "dev", "recorded"),
    [
        ("english-upper-2", None, "SO W", "SO W", "[noise] {LG}"),
        ("english-upper-2", "noise", "SO <UNK> <UNK> W", "SO W", "[noise] {LG}"),
        ("english-upper-2", "keep", "SO NOISE LG W", "SO NOISE LG W", None),
        ("as-given", None, "so {LG} w", "so {LG} w", "[noise]"),
        ("as-given", "keep", "so [noise] {LG} w", "so [noise] {LG} w", None),
    ],
)
def test_tags_of_transcripts_follow_the_setting(tmp_path, normaliser, tags, train, dev, recorded):
    """Tags trained as the noise phone are <UNK> only in the training data."""
    from recipes.steps.data import hybrid_policy, write_corpus

    run = WithTags(tmp_path, normaliser, tags)
    write_corpus(run, hybrid_policy(run), noise_phone=True)
    for split, text in {"train": train, "dev": dev}.items():
        written = read_cuts(tmp_path / f"data-out/{split}.jsonl")
        assert {text_of(cut) for cut in written} == {text}
        assert {(cut.custom or {}).get("tags") for cut in written} == {recorded}
    assert (tmp_path / "lexicon" in run.needed) == (normaliser == "as-given")


@pytest.mark.parametrize(
    ("normaliser", "splits", "written"),
    [
        ("letters-upper-2", True, "M' APPELLE PO' TIS"),
        ("letters-upper-2", False, "M'APPELLE PO' TIS"),
        ("english-upper-3", True, "M' APPELLE PO' TIS"),
        ("letters-upper-1", False, "M'APPELLE PO TIS"),
        ("english-upper-2", False, "M'APPELLE PO' 'TIS"),
    ],
)
def test_the_lexicon_decides_about_words_of_transcripts(
    tmp_path, caplog, normaliser, splits, written
):
    from recipes.steps.data import hybrid_policy, write_corpus

    caplog.set_level("INFO")
    run = WithTags(tmp_path, normaliser, None)
    (tmp_path / "lexicon").write_text("m' M\nappelle A\npo' P\n")
    run.config.lang = LangConfig(tmp_path / "lexicon", normaliser, split_clitics=splits)
    lines = (run.data / "text").read_text().splitlines()
    (run.data / "text").write_text("".join(f"{x.split()[0]} m'appelle po' 'tis\n" for x in lines))
    write_corpus(run, hybrid_policy(run), noise_phone=True)
    texts = {text_of(cut) for cut in read_cuts(tmp_path / "data-out/train.jsonl")}
    assert texts == {written}
    assert ("words split at clitics (M'APPELLE)" in caplog.text) == splits
