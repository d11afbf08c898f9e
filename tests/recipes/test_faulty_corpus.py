"""Corpora with every fault that the data check finds run to a word error rate."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.recipes.conftest import QUICKEST

soundfile = pytest.importorskip("soundfile")

pytestmark = pytest.mark.long

OOV = "ZORBLAX QUIMPLE FRUNDIGE"
FIFTY = " ".join(["ELEVEN"] * 50)
GMMS = ("mono", "tri", "lda_mllt", "sat")
NETWORKS = {"kaldi": ("chain",), "mini": ("lstm_ce", "lstm_smbr", "lstm_fmllr", "blstm", "chain")}
"""What is trained after the GMMs, by profile: all that there is in one of them."""
NARROW = tuple(
    f"{decode}.{setting}"
    for decode in ("decode", "chain_decode")
    for setting in ("beam.output=3", "rescoring.beam=3")
)
"""So little is learnt from two minutes of speech that lattices are wide."""
FEWER = tuple(s for s in QUICKEST if not s.startswith(("corpus.", "gmm_decode.")))
"""Words of the networks do not matter."""
LEFT_OUT = {
    "truncated": "truncated-audio",
    "empty": "unreadable-audio",
    "untold": "missing-transcript",
    "piped": "refused-pipe",
}
"""Kind of finding by fault, where the fault leaves an utterance out of every split."""


@dataclass
class Part:
    """Utterances of one split, good and faulty."""

    audio: dict[str, Path]
    texts: dict[str, str]
    faults: dict[str, str]
    """Utterance by fault."""

    @property
    def usable(self):
        bad = {self.faults[fault] for fault in LEFT_OUT if fault in self.faults}
        return {name: text for name, text in self.texts.items() if name not in bad}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    from local.synthetic.config import SyntheticConfig
    from local.synthetic.corpus import generate

    root = tmp_path_factory.mktemp("demo")
    hours = {"train_hours": 0.05, "dev_hours": 0.008, "test_hours": 0.008}
    mild = {"snr_db": (15, 25), "t60_seconds": (0.1, 0.2), "direct_to_reverberant_db": (8, 12)}
    generate(SyntheticConfig(train_speakers=2, lm_sentences=500, **hours, **mild), root)
    return root


@pytest.fixture
def parts(demo, tmp_path):
    """Demo utterances; some of each split have faults."""
    parts = {}
    for split in ("train", "dev", "test"):
        audio, texts = {}, {}
        for path in sorted((demo / split).rglob("*.trans.txt")):
            for line in path.read_text().splitlines():
                name, texts[name] = line.split(" ", 1)
                audio[name] = path.with_name(f"{name}.flac")
        folder = tmp_path / "spoilt" / split
        folder.mkdir(parents=True)
        parts[split] = spoil(audio, texts, folder)
    return parts


def spoil(audio, texts, folder):
    """Give each of the first utterances one fault."""
    kinds = ("truncated", "empty", "slow", "untold", "oov", "short", "frameless")
    faults = dict(zip(kinds, sorted(audio), strict=False))
    faults["repeated"] = sorted(audio)[-1]
    assert len({*faults.values()}) == len(faults)
    content = audio[faults["truncated"]].read_bytes()
    slow, rate = soundfile.read(audio[faults["slow"]], dtype="int16")
    short = soundfile.read(audio[faults["short"]], dtype="int16")[0][:rate]
    for fault, suffix in (
        ("truncated", ".flac"),
        ("empty", ".flac"),
        ("slow", ".wav"),
        ("short", ".flac"),
        ("frameless", ".flac"),
    ):
        audio[faults[fault]] = folder / (faults[fault] + suffix)
    audio[faults["truncated"]].write_bytes(content[: len(content) * 6 // 10])
    audio[faults["empty"]].write_bytes(b"")
    soundfile.write(audio[faults["slow"]], slow[::2, None].repeat(2, axis=1), rate // 2)
    soundfile.write(audio[faults["short"]], short, rate)
    soundfile.write(audio[faults["frameless"]], short[: rate // 50], rate)  # less than a window
    del texts[faults["untold"]]
    texts |= {faults["oov"]: OOV, faults["short"]: FIFTY}
    return Part(audio, texts, faults)


def write_kaldi(parts, root):
    """Write Kaldi data directories; one recording is a command."""
    for split, part in parts.items():
        folder = root / split
        folder.mkdir(parents=True)
        part.faults["piped"] = f"{split}-piped"
        part.texts[f"{split}-piped"] = "HELLO"
        recordings = {name: str(path) for name, path in part.audio.items()}
        recordings[f"{split}-piped"] = f"touch {root / 'the-command-ran'} |"
        again = part.faults["repeated"]
        tables = {
            "wav.scp": recordings.items(),
            "text": [*part.texts.items(), (again, part.texts[again])],
            "utt2spk": [(name, name.split("-")[0]) for name in recordings],
        }
        for name, table in tables.items():
            lines = "".join(f"{key} {value}\n" for key, value in sorted(table))
            (folder / name).write_text(lines)


def write_librispeech(parts, root):
    for split, part in parts.items():
        again = part.faults["repeated"]
        for name, text in [*part.texts.items(), (again, part.texts[again])]:
            chapter = name.rpartition("-")[0]
            folder = root / split / chapter.replace("-", "/")
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / f"{chapter}.trans.txt", "a") as file:
                file.write(f"{name} {text}\n")
        for name, path in part.audio.items():
            shutil.copy(path, root / split / name.rpartition("-")[0].replace("-", "/"))


@pytest.mark.parametrize(
    ("profile", "write"), [("kaldi", write_kaldi), ("mini", write_librispeech)]
)
def test_a_corpus_with_every_fault_runs_to_a_word_error_rate(
    commands, demo, parts, tmp_path, profile, write
):
    corpus, exp = tmp_path / "corpus", tmp_path / "exp"
    write(parts, corpus)
    settings = (f"corpus.root={corpus}", f"lm.text={demo / 'lm.txt'}", *FEWER, *NARROW)
    settings += ("chain_features=adapted",)  # as the profiles have it
    if profile == "kaldi":
        settings += (f"lang.lexicon={commands.lexicon}",)
        settings += ("lstm=false", "adapted=false", "bidirectional=false")
    if profile == "mini":  # the network aligns for a second training of itself
        settings += ("align.rounds=1", "align.max_failed=0.5", "detect_speech=false")
        settings += ("lang.words=none", "lang.g2p_for_lm_words=false")  # not all of cmudict
    changed = [word for setting in settings for word in ("--set", setting)]
    arguments = ("--profile", profile, *commands.small, *changed, "--jobs", 1)
    result = commands.run(*arguments, "--exp", exp)
    assert result.status == 0, result.output + result.errors
    assert "check/report.txt" in result.output
    assert not (corpus / "the-command-ran").exists()
    realigned = exp / "lstm_ce" / "rounds" / "0" / "ali.2" / "table.tsv"
    assert realigned.exists() == (profile == "mini")
    assert_named_in_the_report(parts, exp)
    assert_left_out_and_scored(parts, exp, NETWORKS[profile])


def assert_named_in_the_report(parts, exp):
    """The report names every fault with its utterance and fix."""
    report = (exp / "check" / "report.txt").read_text()
    utterances = {name for part in parts.values() for name in (*part.audio, *part.faults.values())}
    named = {}
    for section in report.split("\n\n"):
        title, *lines = section.splitlines()
        kind = re.match(r"(?:ERROR|WARNING|NOTE) ([a-z-]+): ", title)
        if kind:
            assert lines[0].startswith("  Fix: ")
            named_utterances = [line.split(maxsplit=2)[:2] for line in lines[1:]]
            named[kind[1]] = {
                (split, name) for split, name in named_utterances if name in utterances
            }
    for split, part in parts.items():
        kinds = {
            **LEFT_OUT,
            "slow": "other-rate",
            "oov": "all-oov",
            "short": "too-short" if split == "train" else "short-test",
            "frameless": "too-short" if split == "train" else "short-test",
            "repeated": "duplicate-id",
        }
        for fault, utterance in part.faults.items():
            assert (split, utterance) in named[kinds[fault]], fault
        assert (split, part.faults["slow"]) in named["many-channels"]
        # Nothing else is found fault with: utterances that are in order have no line.
        faulty = {utterance for s, utterance in set().union(*named.values()) if s == split}
        assert faulty <= {*part.faults.values()}
    guesses = (exp / "lang" / "g2p.tsv").read_text()
    for word in OOV.split():
        assert word in report
        assert f"\n{word}\t" in guesses


def assert_left_out_and_scored(parts, exp, networks):
    """Training leaves unusable utterances out; a decode has a line for each of the others."""
    table = (exp / "ali" / "table.tsv").read_text().splitlines()
    trained = {line.split("\t")[0] for line in table[1:]}
    too_short = {parts["train"].faults[fault] for fault in ("short", "frameless")}
    assert trained == {*parts["train"].usable} - too_short
    rows = json.loads((exp / "results.json").read_text())
    rescored = [system for system in ("sat", *networks) for _ in ("3gram", "4gram")]
    (best,) = {row["system"] for row in rows if row["lm"] == "4gram+lstm"}
    assert best in ("sat", *networks)
    assert [(row["system"], row["split"]) for row in rows] == [
        (system, split)
        for system in (*GMMS[:3], *rescored, best, "combined")
        for split in ("dev", "test")
    ]
    for row in rows:
        expected = parts[row["split"]].usable
        decode = row["system"] + ("_lstm_lm" if row["lm"] == "4gram+lstm" else "")
        lines = (exp / "decode" / decode / row["split"] / "text").read_text().splitlines()
        assert {line.split()[0] for line in lines} == {*expected}
        assert parts[row["split"]].faults["frameless"] in lines  # no word: all are deleted
        assert row["ref_words"] == sum(len(text.split()) for text in expected.values())
        # Of some hundred words fifty are not in the audio. Measured: mono 31 and 22 words right.
        correct_words = row["ref_words"] - row["sub"] - row["del"]
        assert correct_words > 10 or row["system"] in networks
