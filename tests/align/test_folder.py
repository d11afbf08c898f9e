"""`toolkit align` on a language of five sounds, whose times are known."""

import itertools
import random
import re
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from click.testing import CliRunner

from toolkit.align.aligner import (
    AlignerError,
    GmmAligner,
    GmmAlignerFiles,
    write_aligner_bundle,
)
from toolkit.align.ctm_textgrid import TimedToken, read_ctm, write_ctm
from toolkit.align.folder import UNALIGNED, align_folder, estimate_speaker_transforms
from toolkit.cli import main
from toolkit.features.config import FrontendConfig
from toolkit.features.frontend import Frontend
from toolkit.features.gmm_features import GmmFrontend
from toolkit.hmm.gmm import Gmm, GmmStatistics
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.transforms import FmllrStatistics, estimate_fmllr
from toolkit.lang.g2p import G2p
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon

TONES = {"A": (300, 900), "B": (700, 2500), "C": (1500, 3300), "D": (450, 1900), "E": (1000, 2900)}
WORDS = ["ABBA", "BED", "CAB", "ACE", "DEAD", "DECADE", "FACADE"]
LEXICON = Lexicon({word: [tuple(word.replace("F", "B"))] for word in WORDS})
FRONTEND = FrontendConfig("mfcc")


def speak(words, seed, rate=16000, pauses=None):
    """Samples, the seconds at which words begin, and (phone, seconds at which it ends)."""
    rng = np.random.default_rng(seed)
    pieces, starts, ends, now = [], [], [], 0.0

    def add(phone, seconds):
        nonlocal now
        time = np.arange(round(now * rate), round((now + seconds) * rate)) / rate
        tones = sum(np.sin(2 * np.pi * f * time) for f in TONES.get(phone, ()))
        pieces.append(0.1 * tones + 0.002 * rng.standard_normal(len(time)))
        now += seconds
        ends.append((phone, now))

    add("SIL", 0.3)
    for i, word in enumerate(words):
        starts.append(now)
        for phone in LEXICON.get(word, [word])[0]:
            add(phone, rng.uniform(0.07, 0.14))
        add("SIL", (pauses or {}).get(i, rng.choice([0.0, 0.3])) + 0.001)
    add("SIL", 0.3)
    return np.concatenate(pieces).astype(np.float32), starts, ends


def sentence(seed, count=6):
    return random.Random(seed).choices(WORDS, k=count)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """An aligner trained on the true times of thirty sentences."""
    root = tmp_path_factory.mktemp("aligner")
    lang = Lang.of(LEXICON)
    lang.save(root / "lang")
    senones = Senones.monophone(Topology(tuple(lang.real_phones)))
    frontend, states, cepstra = Frontend(FRONTEND), [], []
    for seed in range(30):
        samples, _, ends = speak(sentence(seed), seed)
        cepstra.append(frontend(torch.from_numpy(samples)))
        begin = 0
        for phone, end in ends:
            behind = min(round(end * 100), len(cepstra[-1]))
            number = senones.topology.num_states(lang.phones[phone])
            for frame in range(begin, behind):
                state = (frame - begin) * number // (behind - begin)
                states.append(senones.topology.state_id(lang.phones[phone], state))
            begin = behind
        states += [states[-1]] * (len(torch.cat(cepstra)) - len(states))
    mean = torch.cat(cepstra).mean(0)
    x = torch.cat([GmmFrontend()(c, mean) for c in cepstra])
    pdfs = senones.num_pdfs
    moments = (part.expand(pdfs, -1).clone() for part in (x.mean(0), x.var(0)))
    gmm = Gmm(torch.arange(pdfs), torch.ones(pdfs), *moments)
    statistics = GmmStatistics.zeros(gmm.num_gaussians, x.shape[1])
    gmm.accumulate(x, torch.tensor(states), statistics)
    # Broad densities: log-likelihoods differ about as much as those of models of speech.
    gmm = gmm.maximise(statistics, 3.0, 0.6 * x.var(0))
    system = root / "system"
    senones.save(system)
    GmmFrontend().save(system)
    gmm.save(system / "gmm.safetensors")
    more = Lexicon({"CAFE": [("C", "A", "B", "E")], "ZOO": [("Z", "UW")]})
    write_aligner_bundle(system, root / "lang", FRONTEND, root / "final/aligner", more)
    write_aligner_bundle(
        system, root / "lang", FRONTEND, root / "adapting", more, independent=system
    )
    return root / "final"


SWAP = dict(zip(WORDS, [*WORDS[1:], WORDS[0]], strict=True))
"""Another word for each word."""


@pytest.fixture
def corpus(tmp_path):
    """Write spoken sentences: corpus({name: words}, rate, channels) -> (audio, text, starts)."""

    def write(texts, rate=16000, channels=1):
        starts = {}
        audio = tmp_path / "audio"
        for seed, (name, words) in enumerate(texts.items(), 100):
            samples, starts[name], _ = speak(words, seed, rate)
            path = audio / f"{name}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, np.stack([samples] * channels, axis=1), rate)
        text = tmp_path / "text"
        text.write_text("".join(f"{n} {' '.join(w)}\n" for n, w in texts.items()))
        return audio, text, starts

    return write


def table(out):
    lines = (out / "table.tsv").read_text().splitlines()
    rows = [dict(zip(lines[0].split("\t"), line.split("\t"), strict=True)) for line in lines[1:]]
    return {row["utterance"]: row for row in rows}


def errors(out, starts):
    """Differences in seconds between the aligned and the true starts of words."""
    aligned_starts = {name: [] for name in starts}
    for entry in read_ctm(out / "words.ctm"):
        if entry.token != UNALIGNED:
            aligned_starts[entry.utterance].append(entry.start)
    return np.concatenate([np.subtract(aligned_starts[name], starts[name]) for name in starts])


@pytest.mark.parametrize(("rate", "channels"), [(16000, 1), (44100, 2), (8000, 1)])
def test_aligned_words_start_at_their_true_times(bundle, corpus, tmp_path, rate, channels):
    audio, text, starts = corpus({f"s/u{i}": sentence(i + 40) for i in range(3)}, rate, channels)
    outcomes = align_folder(GmmAlignerFiles.find(bundle), audio, text, tmp_path / "out")
    assert [o.status for o in outcomes] == ["ok"] * 3
    differences = np.abs(errors(tmp_path / "out", starts))
    assert np.median(differences) < (0.02 if rate > 8000 else 0.05)
    assert differences.max() < 0.1
    words = read_ctm(tmp_path / "out/words.ctm")
    phones = read_ctm(tmp_path / "out/phones.ctm")
    for entry in (*words, *phones):
        assert entry.duration > 0
        assert 0 <= entry.confidence <= 1
    spelled = [e.token for e in phones if e.token != "SIL"]
    assert spelled == [p for e in words for p in LEXICON[e.token][0]]
    for name in starts:
        utterance_phones = [e for e in phones if e.utterance == name]
        assert utterance_phones[0].start == 0
        assert all(a.end == pytest.approx(b.start) for a, b in itertools.pairwise(utterance_phones))
        grid = (tmp_path / f"out/textgrid/{name}.TextGrid").read_text(encoding="utf-8")
        assert 'name = "words"' in grid
        assert 'name = "phones"' in grid
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "phones.ctm",
        "table.tsv",
        "textgrid",
        "words.ctm",
    ]


def test_alignment_is_compared_with_a_reference(bundle, corpus, tmp_path):
    audio, text, _ = corpus({"a": sentence(81), "b": sentence(82)})
    arguments = ["align", "--model", bundle, "--audio-dir", audio, "--text", text]
    arguments = [*map(str, arguments), "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    shifted = [
        (e.utterance, e.channel, [TimedToken(e.token, e.start + 0.03, e.end + 0.03)])
        for e in read_ctm(tmp_path / "out/words.ctm")
    ]
    write_ctm(shifted, tmp_path / "late.ctm")
    result = CliRunner().invoke(main, [*arguments, "--reference", str(tmp_path / "late.ctm")])
    assert result.exit_code == 0
    assert "words compared: 12\n" in result.output
    assert "boundaries, median absolute difference in ms: 30.0\n" in result.output
    # An unreadable reference is an error before anything is aligned.
    modified_ns = (tmp_path / "out/table.tsv").stat().st_mtime_ns
    result = CliRunner().invoke(main, [*arguments, "--reference", str(tmp_path / "none.ctm")])
    assert (result.exit_code, "none.ctm: no such file" in result.output) == (1, True)
    assert (tmp_path / "out/table.tsv").stat().st_mtime_ns == modified_ns


def test_failures_are_named_and_other_recordings_aligned(bundle, corpus, tmp_path):
    texts = {name: sentence(i + 60) for i, name in enumerate(("good", "cut", "long", "mute"))}
    audio, text, starts = corpus(texts)
    (audio / "cut.wav").write_bytes(b"no audio")
    soundfile.write(audio / "untold.wav", np.zeros(16000), 16000)
    text.write_text(
        f"good {' '.join(texts['good'])}\nlong {' '.join(texts['long'] * 9)}\nmute 123\n"
        f"gone BED\ncut {' '.join(texts['cut'])}\n"
    )
    arguments = ["align", "--model", bundle, "--audio-dir", audio, "--text", text]
    result = CliRunner().invoke(main, [*map(str, arguments), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "Aligned 1 of 6 (0 retried, 0 partly, 5 failed)" in result.output
    rows = table(tmp_path / "out")
    assert {n: r["status"] for n, r in rows.items()} == {
        "cut": "failed",
        "gone": "failed",
        "good": "ok",
        "long": "failed",
        "mute": "failed",
        "untold": "failed",
    }
    assert "of 54 words were found in the audio" in rows["long"]["reason"]
    assert "no audio file" in rows["gone"]["reason"]
    assert "has no text" in rows["untold"]["reason"]
    assert rows["mute"]["reason"] == "its transcript has no words"
    for name in rows.keys() - {"good"}:
        assert f"Error: {name}: " in result.output
    assert np.abs(errors(tmp_path / "out", {"good": starts["good"]})).max() < 0.1
    # Again into the same folder: what fails now has no times of before.
    (audio / "good.wav").write_bytes(b"no audio")
    CliRunner().invoke(main, [*map(str, arguments), "--out", str(tmp_path / "out")])
    assert table(tmp_path / "out")["good"]["status"] == "failed"
    assert list((tmp_path / "out").rglob("*.TextGrid")) == []


def test_no_utterance_name_leads_outside_the_output_folder(bundle, corpus, tmp_path):
    """A folder whose name becomes `..` without its white space, and a planted link."""
    texts = {name: sentence(i + 70) for i, name in enumerate(("\xa0../up", "away/u"))}
    audio, _, _ = corpus(texts)
    for name, words in texts.items():
        (audio / f"{name}.txt").write_text(" ".join(words))
    out, outside = tmp_path / "out", tmp_path / "other"
    (out / "textgrid").mkdir(parents=True)
    (out / "textgrid/away").symlink_to(outside)
    outcomes = align_folder(GmmAlignerFiles.find(bundle), audio, audio, out)
    assert {o.utterance: o.status for o in outcomes} == {"../up": "ok", "away/u": "failed"}
    assert "lies outside" in next(o.reason for o in outcomes if o.status == "failed")
    assert list(tmp_path.rglob("*.TextGrid")) == [out / "textgrid/up.TextGrid"]
    assert not outside.exists()


def test_words_outside_the_lexicon_are_guessed(bundle, corpus, tmp_path):
    words = ["BED", "DAB", "CAFE", "ACE"]
    audio, text, starts = corpus({"u": words})
    # CAFE is one of the words that the bundle got besides.
    text.write_text("u Bed, dab & cafe ace 7\n")
    align_folder(GmmAlignerFiles.find(bundle), audio, text, tmp_path / "out")
    row = table(tmp_path / "out")["u"]
    assert (row["status"], row["guessed"]) == ("ok", "DAB")
    assert row["reason"] == "left out of the text: &7"
    phones = [e.token for e in read_ctm(tmp_path / "out/phones.ctm") if e.token != "SIL"]
    guess = G2p.load(bundle / "aligner/g2p.npz").guess(["DAB"])["DAB"].phones
    assert "".join(phones) == f"BED{''.join(guess)}CABEACE"
    assert np.abs(errors(tmp_path / "out", starts)[:2]).max() < 0.1


def test_words_in_brackets_are_aligned_as_noise(bundle, corpus, tmp_path):
    audio, text, _ = corpus({"u": ["BED", "ACE"], "v": ["BED"]})
    text.write_text("u <s> bed (loud  cough) ace & </s>\nv <unk>\n")
    align_folder(GmmAlignerFiles.find(bundle), audio, text, tmp_path / "out")
    words = read_ctm(tmp_path / "out/words.ctm")
    assert [e.token for e in words] == ["BED", "[loud_cough]", "ACE"]
    phones = read_ctm(tmp_path / "out/phones.ctm")
    assert [e.token for e in phones if e.start == words[1].start] == ["SPN"]
    reasons = {name: row["reason"] for name, row in table(tmp_path / "out").items()}
    assert reasons == {
        "u": "left out of the text: </s> <s> &; aligned as noise: [loud_cough]",
        "v": "its transcript has no words",
    }


def test_a_text_with_other_passages_is_aligned_partly(bundle, corpus, tmp_path):
    words = sentence(90, 24)
    audio, text, starts = corpus({"u": words})
    # The text lacks words 6 to 11; words 15 to 17 were not spoken.
    text.write_text(
        f"u {' '.join([*words[:6], *words[12:18], 'ACE', 'ACE', 'ACE', *words[18:]])}\n"
    )
    arguments = ["align", "--model", bundle, "--audio-dir", audio, "--text", text]
    result = CliRunner().invoke(main, [*map(str, arguments), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0
    assert "Aligned 1 of 1 (0 retried, 1 partly, 0 failed)" in result.output
    row = table(tmp_path / "out")["u"]
    assert row["status"] == "partly"
    assert f"Note: u: {row['reason']}" in result.output
    begin, end = map(float, re.search(r"in seconds: ([\d.]+)-([\d.]+);", row["reason"]).groups())
    assert begin == pytest.approx(starts["u"][6], abs=0.3)
    assert end == pytest.approx(starts["u"][12], abs=0.3)
    assert row["reason"].endswith("words that the audio lacks: ACE ACE ACE (words 13 to 15)")
    entries = read_ctm(tmp_path / "out/words.ctm")
    spoken = [entry for entry in entries if entry.token != UNALIGNED]
    assert [entry.token for entry in spoken] == [*words[:6], *words[12:]]
    expected = [*starts["u"][:6], *starts["u"][12:]]
    assert np.abs(np.subtract([entry.start for entry in spoken], expected)).max() < 0.1
    assert [e.token for e in read_ctm(tmp_path / "out/phones.ctm")].count(UNALIGNED) == len(
        entries
    ) - len(spoken)
    assert f'text = "{UNALIGNED}"' in (tmp_path / "out/textgrid/u.TextGrid").read_text()
    # Gaps are no words that the reference lacks.
    lines = (tmp_path / "out/words.ctm").read_text().splitlines(keepends=True)
    reference = tmp_path / "reference.ctm"
    reference.write_text("".join(line for line in lines if UNALIGNED not in line))
    again = [*map(str, arguments), "--reference", str(reference), "--out", str(tmp_path / "again")]
    assert "words only in the hypothesis: 0" in CliRunner().invoke(main, again).output
    # Whoever knows that nothing is missing gets times of all words.
    complete = [*map(str, arguments), "--complete", "--out", str(tmp_path / "complete")]
    result = CliRunner().invoke(main, complete)
    assert result.exit_code == 0
    assert table(tmp_path / "complete")["u"]["status"] in ("ok", "retried")
    entries = read_ctm(tmp_path / "complete/words.ctm")
    assert [entry.token for entry in entries] == text.read_text().split()[1:]


def test_a_single_wrong_word_fails(bundle, corpus, tmp_path):
    audio, text, _ = corpus({"u": ["BED"], "v": ["BED"]})
    text.write_text("u BED\nv ACE\n")
    align_folder(GmmAlignerFiles.find(bundle), audio, text, tmp_path / "out")
    rows = table(tmp_path / "out")
    assert [rows[name]["status"] for name in "uv"] == ["ok", "failed"]
    assert rows["v"]["reason"].startswith("text and audio do not seem to belong together: ")
    complete = GmmAlignerFiles.find(bundle, complete_texts=True)
    outcomes = align_folder(complete, audio, text, tmp_path / "out")
    assert all(outcome.aligned for outcome in outcomes)


def test_an_as_given_bundle_matches_text_without_normalisation(bundle, corpus, tmp_path):
    """Words in small letters with a dot, a tag that has a pronunciation, and a word in capitals."""
    lang_folder = shutil.copytree(bundle, tmp_path / "as_given") / "aligner/lang"
    lang = Lang.load(lang_folder)
    words = {f"{word.lower()}.": lang.lexicon[word] for word in lang.vocabulary}
    lexicon = Lexicon(words | {"[ace]": lang.lexicon["ACE"]})
    replace(Lang.of(lexicon), normaliser="as-given").save(lang_folder)
    audio, text, starts = corpus({"u": ["BED", "ACE", "BED"], "v": ["BED"], "w": ["ACE"]})
    text.write_text("u bed. [ace] bed. [noise]\nv BED\nw [ace]\n")
    align_folder(GmmAlignerFiles.find(tmp_path / "as_given"), audio, text, tmp_path / "out")
    words = read_ctm(tmp_path / "out/words.ctm")
    assert [entry.token for entry in words] == ["bed.", "[ace]", "bed.", "[noise]", "BED", "[ace]"]
    differences = np.subtract([entry.start for entry in words[:3]], starts["u"])
    assert np.abs(differences).max() < 0.1
    assert table(tmp_path / "out")["u"]["reason"] == "aligned as noise: [noise]"


def test_a_word_that_nobody_can_guess_is_noise(bundle, corpus, tmp_path):
    audio, text, _ = corpus({"u": ["BED", "ACE"]})
    text.write_text("u bed xylophone ace\n")
    align_folder(GmmAlignerFiles.find(bundle), audio, text, tmp_path / "out")
    assert "XYLOPHONE" in table(tmp_path / "out")["u"]["reason"]
    assert [e.token for e in read_ctm(tmp_path / "out/words.ctm")] == ["BED", "XYLOPHONE", "ACE"]


def test_a_text_without_any_pronunciation_is_aligned_as_noise(bundle, corpus, tmp_path):
    """No confidence can be computed, which does not count as a low one."""
    audio, text, _ = corpus({"u": ["BED", "ACE"]})
    text.write_text("u xylophone\n")
    align_folder(GmmAlignerFiles.find(bundle), audio, text, tmp_path / "out")
    assert table(tmp_path / "out")["u"]["status"] != "failed"


def test_tags_count_neither_as_found_nor_as_missing(bundle, corpus, tmp_path):
    """Nobody hears the noises of the text."""
    audio, text, _ = corpus({"u": ["BED"]})
    text.write_text("u [noise] [noise] [noise] [noise] bed [noise] [noise] [noise]\n")
    align_folder(GmmAlignerFiles.find(bundle), audio, text, tmp_path / "out")
    row = table(tmp_path / "out")["u"]
    assert (row["status"], row["reason"]) == ("ok", "aligned as noise: [noise]")


def test_the_texts_of_other_recordings_fail(bundle, corpus, tmp_path):
    texts = {f"u{i}": sentence(i + 80) for i in range(4)}
    audio, text, _ = corpus(texts)
    text.write_text("".join(f"{n} {' '.join(SWAP[x] for x in w)}\n" for n, w in texts.items()))
    outcomes = align_folder(GmmAlignerFiles.find(bundle), audio, text, tmp_path / "out")
    assert [outcome.status for outcome in outcomes] == ["failed"] * 4
    assert all("do not seem to belong together" in outcome.reason for outcome in outcomes)


def test_a_wrong_word_has_the_lowest_confidence(bundle, corpus, tmp_path):
    words = sentence(80)
    audio, text, _ = corpus({"u": words})
    text.write_text(f"u {' '.join([*words[:2], SWAP[words[2]], *words[3:]])}\n")
    align_folder(GmmAlignerFiles.find(bundle), audio, text, tmp_path / "out")
    confidences = [e.confidence for e in read_ctm(tmp_path / "out/words.ctm")]
    assert confidences.index(min(confidences)) == 2


def test_results_do_not_depend_on_jobs(bundle, corpus, tmp_path):
    audio, text, _ = corpus({f"s{i % 2}/u{i}": sentence(i + 20) for i in range(3)})
    for jobs in (1, 2):
        align_folder(GmmAlignerFiles.find(bundle), audio, text, tmp_path / str(jobs), jobs=jobs)
    files = [p.relative_to(tmp_path / "1") for p in (tmp_path / "1").rglob("*") if p.is_file()]
    assert len(files) == 6
    for name in files:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def fmllr_statistics(seed):
    """Statistics of 600 frames of two dimensions, enough for a transform."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 50, 3, generator=generator, dtype=torch.float64)
    linear = 100 * torch.randn(2, 3, generator=generator, dtype=torch.float64)
    return FmllrStatistics(600.0, linear, 10 * x.transpose(1, 2) @ x)


def test_statistics_are_released_with_the_last_recording_of_a_speaker():
    names = ["a-1", "a-2", "b-1", "a-failed", "c-1", "d-1", "e-1", "b-2", "f-1"]
    alive, num_alive = set(), []

    def accumulated(number):
        statistics = fmllr_statistics(number)
        alive.add(number)
        weakref.finalize(statistics, alive.discard, number)
        return statistics

    def statistics_of_recordings():
        for number, name in enumerate(names):
            yield None if name == "a-failed" else accumulated(number)
            num_alive.append(len(alive))

    speakers = [name[0] for name in names]
    transforms = estimate_speaker_transforms(speakers, statistics_of_recordings())
    numbers = {"a": [0, 1], "b": [2, 7], "c": [4], "d": [5], "e": [6], "f": [8]}
    assert transforms.keys() == numbers.keys()
    for speaker, (first, *later_numbers) in numbers.items():
        total = fmllr_statistics(first)
        for number in later_numbers:
            total.add(fmllr_statistics(number))
        expected, gain = estimate_fmllr(total)
        assert gain > 0
        assert torch.equal(transforms[speaker], expected)
    assert max(num_alive) < 4


def test_speakers_are_adapted_to(bundle, corpus, tmp_path):
    audio, text, starts = corpus({f"s/u{i}": sentence(i + 20, 8) for i in range(3)})
    unadapted = align_folder(GmmAlignerFiles.find(bundle), audio, text, tmp_path / "plain")
    adapted = align_folder(
        GmmAlignerFiles.find(bundle.parent / "adapting"), audio, text, tmp_path / "adapted"
    )
    assert [o.confidence for o in adapted] != [o.confidence for o in unadapted]
    assert np.abs(errors(tmp_path / "adapted", starts)).max() < 0.1
    # Too little speech of each: no transform.
    (tmp_path / "utt2spk").write_text("".join(f"s/u{i} speaker{i}\n" for i in range(3)))
    single_utterances = [
        align_folder(
            GmmAlignerFiles.find(model), audio, text, tmp_path / name, tmp_path / "utt2spk"
        )
        for name, model in (("p", bundle), ("a", bundle.parent / "adapting"))
    ]
    assert [o.confidence for o in single_utterances[0]] == pytest.approx(
        [o.confidence for o in single_utterances[1]]
    )


def test_the_bundle_can_be_moved_and_others_are_refused(bundle, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(bundle / "aligner", moved)
    assert not GmmAlignerFiles(moved).needs_speakers
    assert GmmAligner(moved).frontend.config == FRONTEND
    assert "ZOO" not in Lang.load(moved / "lang").lexicon
    settings = Path(moved / "lang/lang.json")
    settings.write_text(settings.read_text().replace("english-upper", "older"))
    with pytest.raises(AlignerError, match="older"):
        GmmAligner(moved)
    with pytest.raises(AlignerError, match=r"there is no aligner\.json"):
        GmmAligner(tmp_path)


@pytest.mark.parametrize("channel", [1, 2])
def test_one_channel_is_aligned_like_a_mono_file(bundle, corpus, tmp_path, channel):
    audio, text, _ = corpus({"call": sentence(40)})
    mono, rate = soundfile.read(audio / "call.wav", dtype="int16")
    arguments = ["align", "--model", str(bundle), "--audio-dir", str(audio), "--text", str(text)]
    CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "mono")])
    noise = (3000 * np.random.default_rng(0).standard_normal(len(mono))).astype("int16")
    sides = (mono, noise) if channel == 1 else (noise, mono)
    soundfile.write(audio / "call.wav", np.stack(sides, axis=1), rate)
    arguments += ["--channel", str(channel), "--out", str(tmp_path / "stereo")]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    for tier in ("words", "phones"):
        expected = read_ctm(tmp_path / f"mono/{tier}.ctm")
        expected = [replace(entry, channel=str(channel)) for entry in expected]
        assert read_ctm(tmp_path / f"stereo/{tier}.ctm") == expected
    result = CliRunner().invoke(main, [*arguments, "--channel", "3"])
    assert result.exit_code == 1
    assert "has 2 channels, so there is no channel 3" in result.stderr
