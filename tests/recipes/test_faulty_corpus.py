"""Corpora with every fault that the check knows how to find run to a word error rate."""

import json
import re
import shutil
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("k2")
pytest.importorskip("kaldifeat")
soundfile = pytest.importorskip("soundfile")

OOV = "ZORBLAX QUIMPLE FRUNDIGE"
FIFTY = " ".join(["ELEVEN"] * 50)
# Kinds of findings by fault; those of the first group leave the utterance out everywhere.
EXCLUDED = {
    "truncated": "truncated-audio",
    "empty": "unreadable-audio",
    "untold": "missing-transcript",
    "pipe": "refused-pipe",
}
KEPT = {"slow": "other-rate", "stereo": "many-channels", "oov": "all-oov"}


@dataclass
class Part:
    """Utterances of one split, good and faulty."""

    audio: dict[str, Path] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    """Fault by utterance."""


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Demo utterances, the first six of each split spoilt."""
    from local.synthetic import SyntheticConfig, generate

    root = tmp_path_factory.mktemp("demo")
    generate(
        SyntheticConfig(
            train_speakers=2, train_hours=0.04, dev_hours=0.008, test_hours=0.008, lm_sentences=1
        ),
        root,
    )
    found = {}
    for split in ("train", "dev", "test"):
        part = found[split] = Part()
        for path in sorted((root / split).rglob("*.trans.txt")):
            for line in path.read_text().splitlines():
                name, part.texts[name] = line.split(" ", 1)
                part.audio[name] = path.with_name(f"{name}.flac")
        _spoil(part)
    return found


def _spoil(part):
    truncated, empty, slow, untold, oov, short = sorted(part.audio)[:6]
    part.named = {
        truncated: "truncated",
        empty: "empty",
        slow: "slow",
        untold: "untold",
        oov: "oov",
        short: "short",
    }
    path = part.audio[truncated]
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    part.audio[empty].write_bytes(b"")
    samples, rate = soundfile.read(part.audio[slow], dtype="int16")
    part.audio[slow].unlink()
    part.audio[slow] = part.audio[slow].with_suffix(".wav")
    soundfile.write(part.audio[slow], samples[::2, None].repeat(2, axis=1), rate // 2)
    del part.texts[untold]
    part.texts[oov] = OOV
    samples, rate = soundfile.read(part.audio[short], dtype="int16")
    soundfile.write(part.audio[short], samples[:rate], rate)
    part.texts[short] = FIFTY


def kaldi(parts, root):
    """Write data directories; each names an utterance twice and a command."""
    ran = root / "the-command-ran"
    for split, part in parts.items():
        folder = root / split
        folder.mkdir(parents=True)
        speakers = {name: name.split("-")[0] for name in part.audio}
        lines = {name: str(path) for name, path in part.audio.items()}
        piped, twice = f"{split}-piped", sorted(part.audio)[-1]
        lines[piped], speakers[piped] = f"touch {ran} |", "piper"
        texts = {**part.texts, piped: "HELLO"}
        copies = [f"{twice} {texts[twice]}\n"]
        for name, table in (("wav.scp", lines), ("text", texts), ("utt2spk", speakers)):
            again = copies if name == "text" else []
            content = [f"{key} {table[key]}\n" for key in sorted(table)]
            (folder / name).write_text("".join(content + again))
        part.named = {**part.named, piped: "pipe"}
    return ran


def librispeech(parts, root):
    """Write LibriSpeech's layout; each part has a transcript line twice."""
    for split, part in parts.items():
        twice = sorted(part.audio)[-1]
        texts = [*sorted(part.texts.items()), (twice, part.texts[twice])]
        chapters = defaultdict(list)
        for name, text in texts:
            chapters[name.rpartition("-")[0]].append(f"{name} {text}\n")
        for chapter, lines in chapters.items():
            folder = root / split / chapter.replace("-", "/")
            folder.mkdir(parents=True)
            (folder / f"{chapter}.trans.txt").write_text("".join(lines))
        for name, path in part.audio.items():
            shutil.copy(path, root / split / name.rpartition("-")[0].replace("-", "/"))


def run(commands, profile, root, exp):
    changed = (*commands.small, "--set", f"corpus.root={root}")
    result = commands.run("--profile", profile, *changed, "--exp", exp)
    assert result.status == 0, result.output + result.errors
    return result


def assert_named(parts, exp):
    """Every fault stands in the report with its utterance, and is left out or kept as told."""
    report = (exp / "check" / "report.txt").read_text()
    sections = {}
    for section in report.split("\n\n"):
        head = re.match(r"(ERROR|WARNING|NOTE) ([a-z-]+): ", section)
        if head:
            sections[head[2]] = section
            assert "\n  Fix: " in section
    excluded = (exp / "check" / "excluded.tsv").read_text()
    decoded = {split: _decoded(exp, split) for split in ("dev", "test")}
    for split, part in parts.items():
        last = sorted(part.audio)[-1]
        assert f"  {split}  {last}  copy 2: " in sections["duplicate-id"]
        kept = {*part.texts} - {u for u, fault in part.named.items() if fault in EXCLUDED}
        for name, fault in part.named.items():
            kinds = {
                "slow": ["other-rate", "many-channels"],
                "short": ["too-short" if split == "train" else "short-test"],
            }.get(fault) or [{**EXCLUDED, **KEPT}[fault]]
            for kind in kinds:
                assert f"  {split}  {name}  " in sections[kind], (fault, kind)
            out = fault in EXCLUDED or (fault == "short" and split == "train")
            assert (f"\t{name}\t" in excluded) == out, (split, fault)
        if split != "train":
            assert decoded[split] == kept
    assert "ZORBLAX" in report


def _decoded(exp, split):
    lines = (exp / "decode" / "mono" / split / "text").read_text().splitlines()
    return {line.split()[0] for line in lines}


def assert_scored(parts, exp):
    rows = json.loads((exp / "results.json").read_text())
    assert [(row["system"], row["split"]) for row in rows] == [
        (system, split) for system in ("mono", "lstm_ce") for split in ("dev", "test")
    ]
    for row in rows:
        part = parts[row["split"]]
        bad = {name for name, fault in part.named.items() if fault in EXCLUDED}
        words = sum(len(text.split()) for name, text in part.texts.items() if name not in bad)
        assert row["ref_words"] == words  # those of the fifty words and of the unknown words too
        assert 0 < row["wer"] <= 100


def test_kaldi_directories_with_faults_run_to_a_word_error_rate(commands, parts, tmp_path):
    ran = kaldi(parts, tmp_path / "corpus")
    run(commands, "kaldi", tmp_path / "corpus", tmp_path / "exp")
    assert_named(parts, tmp_path / "exp")
    assert_scored(parts, tmp_path / "exp")
    assert not ran.exists()
    guesses = (tmp_path / "exp" / "lang" / "g2p.tsv").read_text()
    assert all(f"{word}\t" in guesses for word in OOV.split())


def test_librispeech_with_faults_runs_to_a_word_error_rate(commands, parts, tmp_path):
    librispeech(parts, tmp_path / "corpus")
    run(commands, "mini", tmp_path / "corpus", tmp_path / "exp")
    assert_named(parts, tmp_path / "exp")
    assert_scored(parts, tmp_path / "exp")
