"""The recogniser and aligner bundles of the hybrid recipe."""

import json
import shutil

import jiwer
import pytest

from tests.recipes.librispeech_run import SPEAKERS, by_role, errors_on_dev, streaming, systems

soundfile = pytest.importorskip("soundfile")

pytestmark = pytest.mark.long

BY_UTTERANCE = ("lstm_ce", "lstm_smbr", "chain_fbank")
"""The systems that recognise by utterance."""


def card(root, system):
    return json.loads((root / "final" / system["name"] / "card.json").read_text())


def test_the_bundles_are_the_best_on_the_development_data(finished):
    errors = errors_on_dev(finished)
    del errors["combined", "4gram"]
    roles = by_role(finished.root)
    speaker_known, speaker_unknown, stream = (
        roles[r] for r in ("speaker_known", "speaker_unknown", "stream")
    )
    assert (speaker_known["name"], speaker_known["lm"]) == min(errors, key=errors.get)
    networks = {key: count for key, count in errors.items() if key[0] in BY_UTTERANCE}
    assert (stream["name"], stream["lm"]) == min(networks, key=networks.get)
    by_speaker = {key: count for key, count in errors.items() if key[0] not in BY_UTTERANCE}
    candidates = {min(networks, key=networks.get), min(by_speaker, key=by_speaker.get)}
    wer_unknown_speaker = {
        (row["system"], row["lm"]): row["wer_unknown_speaker"]
        for row in finished.rows
        if row["split"] == "dev" and "wer_unknown_speaker" in row
    }
    assert wer_unknown_speaker.keys() == candidates
    assert wer_unknown_speaker[speaker_unknown["name"], speaker_unknown["lm"]] == min(
        wer_unknown_speaker.values()
    )
    headline = json.loads((finished.root / "stages/35.json").read_text())["headline"]
    assert headline == {
        "bundle": speaker_known["name"],
        **{f"wer {split}": wer for split, wer in speaker_known["wer"].items()},
        "bundle for unknown speakers": speaker_unknown["name"],
        **{
            f"wer {split}, speaker unknown": wer
            for split, wer in card(finished.root, speaker_unknown)["wer_unknown_speaker"].items()
        },
    }
    folders = {path.name for path in (finished.root / "final").iterdir() if path.is_dir()}
    assert folders == {"aligner", *(system["name"] for system in systems(finished.root))}


def test_the_cards_say_what_the_systems_were_trained_on_and_reach(finished):
    vocabulary = (finished.root / "lang/words.txt").read_text().split()[::2]
    words = len([word for word in vocabulary if word[0] not in "<#"])
    for system in systems(finished.root):
        system_card = card(finished.root, system)
        rows = {
            row["split"]: row
            for row in finished.rows
            if (row["system"], row["lm"]) == (system["name"], system["lm"])
        }
        assert (
            system_card["wer"]
            == system["wer"]
            == {split: row["wer"] for split, row in rows.items()}
        )
        assert system_card["wer_unknown_speaker"] == {
            split: row["wer_unknown_speaker"] for split, row in rows.items()
        }
        assert (system_card["corpus"], system_card["speakers"], system_card["words"]) == (
            "synthetic",
            3,
            words,
        )
        assert system_card["hours"] == pytest.approx(0.08, abs=0.01)
        assert system_card["tuned_on"] == ["dev"]
    assert "speaker unknown" in (finished.root / "results.md").read_text()
    assert "speaker unknown" in (finished.root / "report.html").read_text()


@pytest.mark.parametrize("named", [False, True])
def test_without_speakers_the_error_rate_is_that_of_the_card(finished, commands, named):
    """It holds for the default system for unknown speakers and for the others."""
    files = sorted((finished.root / "corpus/dev").glob("*/*/*.flac"))
    lines = [
        line
        for path in (finished.root / "corpus/dev").rglob("*.trans.txt")
        for line in path.read_text().splitlines()
    ]
    references = dict(line.split(" ", 1) for line in lines)
    model = ("--model", finished.root / "final")
    unknown = by_role(finished.root)["speaker_unknown"]
    chosen = [system for system in systems(finished.root) if system != unknown] if named else [None]
    for system in chosen:
        arguments = ("--system", system["name"]) if named else ()
        result = commands.toolkit("transcribe", *model, *arguments, *files)
        assert result.status == 0, result.errors
        assert result.errors.startswith(f"{(system or unknown)['name']}: ")
        assert "trained on 0.08 h of synthetic speech (3 voices); WER " in result.errors
        assert "no speaker is named: every recording counts" in result.errors
        texts = dict(line.partition(" ")[::2] for line in result.output.splitlines())
        wer = 100 * jiwer.wer([references[name] for name in texts], list(texts.values()))
        expected = card(finished.root, system or unknown)["wer_unknown_speaker"]["dev"]
        assert wer == pytest.approx(expected, abs=0.005)


def first_recordings(finished, split):
    """Return each speaker's first utterance: there the bundle and the decoder start alike."""
    return sorted((finished.root / "corpus" / split).glob("*/1001/*-0000.flac"))


@pytest.mark.parametrize(
    "system", [None, "sat", "lstm_lm", "blstm", "lstm_fmllr", "chain", "chain_fbank"]
)
def test_a_bundle_finds_the_words_of_the_decoder_for_each_speaker(
    finished, commands, tmp_path, request, system
):
    run, lm = finished, None
    if system is not None:
        run = request.getfixturevalue("copy")
        if system == "lstm_lm":  # which need not help after so little training
            (rows,) = run.root.glob("decode/*_lstm_lm/rows.json")
            zero = dict.fromkeys(("ins", "del", "sub"), 0)
            rows.write_text(json.dumps([row | zero for row in json.loads(rows.read_text())]))
            system = rows.parent.name.removesuffix("_lstm_lm")
            lm = "4gram+lstm"
        settings = ("--stage", 35, "--set", f"bundle={system}", "--exp", run.root)
        settings += ("--set", "detect_speech=false")
        bundling = commands.run(*commands.demo, *settings)
        assert bundling.status == 0, bundling.output + bundling.errors
    best = systems(run.root)[0]
    assert system in (None, best["name"])
    assert lm in (None, best["lm"])
    files = sorted((run.root / "corpus/dev").glob("*/*/*.flac"))
    speakers = tmp_path / "utt2spk"
    speakers.write_text("".join(f"{f.stem} {f.parent.parent.name}\n" for f in files))
    mixed = files[::2] + files[1::2]  # a speaker's recordings need not follow each other
    if best["streams"]:
        mixed = files  # the running mean of a speaker goes by the order of time
    arguments = ("--model", run.root / "final", "--speakers", speakers, *mixed)
    result = commands.toolkit("transcribe", *arguments)
    assert result.status == 0, result.errors
    first, *warnings = result.errors.splitlines()
    assert first.startswith(f"{best['name']}: ")
    assert f" with {best['lm']}; " in first
    assert not warnings
    lines = dict(line.partition(" ")[::2] for line in result.output.splitlines())
    assert [*lines] == [path.stem for path in mixed]
    expected = run.words(best["name"], "dev", best["lm"])
    assert lines == {path.stem: expected[path.stem] for path in files}


def test_the_bundle_transcribes_files_of_any_form_and_names_broken_ones(
    finished, commands, tmp_path
):
    flacs = first_recordings(finished, "dev")
    samples, rate = soundfile.read(flacs[0], dtype="int16")
    names = ("stereo.wav", "8k.wav", "broken.flac", "missing.wav", "click.wav")
    stereo, slow, broken, missing, click = (tmp_path / name for name in names)
    soundfile.write(click, samples[:20], rate)
    soundfile.write(stereo, samples[:, None].repeat(2, axis=1), rate)
    soundfile.write(slow, samples[::2, None].repeat(2, axis=1), rate // 2)
    broken.write_bytes(flacs[0].read_bytes()[:100])
    files = [*flacs, broken, stereo, missing, click, slow]
    system = streaming(finished)
    bundle = ("--model", finished.root / "final", "--system", system["name"])
    result = commands.toolkit("transcribe", *bundle, *files)

    assert result.status == 1
    texts = dict(line.partition(" ")[::2] for line in result.output.splitlines())
    assert list(texts) == [path.stem for path in (*flacs, stereo, slow)]
    expected = finished.words(system["name"], "dev", system["lm"])
    assert len(flacs) == SPEAKERS["dev"]
    assert {path.stem: texts[path.stem] for path in flacs} == {
        path.stem: expected[path.stem] for path in flacs
    }
    assert texts[stereo.stem] == expected[flacs[0].stem]
    vocabulary = (finished.root / "lang" / "words.txt").read_text().split()
    assert texts[slow.stem]
    assert {*texts[slow.stem].split()} <= {*vocabulary}
    _, speakers, *errors = result.errors.splitlines()
    assert speakers.startswith("no speaker is named: every recording counts")
    for path, line in zip((broken, missing, click), errors, strict=True):
        assert line.startswith(f"Error: {path}: ")


def test_the_bundle_gives_word_times_and_the_same_words_piece_by_piece(finished, commands):
    audio, system = first_recordings(finished, "dev")[0], streaming(finished)
    bundle = ("--model", finished.root / "final")
    settings = ("--system", system["name"], "--format", "json")
    whole = commands.toolkit("transcribe", *bundle, *settings, audio)
    assert whole.status == 0, whole.errors
    (segment,) = json.loads(whole.output)["segments"]
    words = segment["words"]
    assert " ".join(word["word"] for word in words) == segment["text"]
    assert segment["text"] == finished.words(system["name"], "dev", system["lm"])[audio.stem]
    last = 0.0
    for word in words:
        assert last - 1e-6 <= word["start"] < word["end"] <= soundfile.info(audio).duration + 0.03
        assert 0 <= word["confidence"] <= 1
        last = word["end"]
    settings = ("--stream", "--endpoint", "30", "--format", "json")
    stream = commands.toolkit("transcribe", *bundle, *settings, audio)
    assert stream.status == 0, stream.errors
    *changes, final = [json.loads(line) for line in stream.output.splitlines()]
    assert len(changes) > 1
    assert not any(change["final"] for change in changes)
    assert final["final"]
    assert final["text"] == segment["text"]


def test_the_fast_bundle_finds_the_words_of_the_first_pass(finished, commands):
    system, audio = streaming(finished), first_recordings(finished, "test")
    settings = ("--system", system["name"], "--fast")
    result = commands.toolkit("transcribe", "--model", finished.root / "final", *settings, *audio)
    assert result.status == 0, result.errors
    expected = finished.words(system["name"], "test", "3gram")
    assert result.output.splitlines() == [f"{path.stem} {expected[path.stem]}" for path in audio]


def test_the_bundle_needs_nothing_of_the_run(finished, commands, tmp_path):
    bundle = tmp_path / "elsewhere"
    shutil.copytree(finished.root / "final", bundle)
    audio = shutil.copy(first_recordings(finished, "test")[0], tmp_path / "a.flac")
    transcription = commands.toolkit("transcribe", "--model", finished.root / "final", audio)
    away = finished.root.rename(finished.root.with_name("away"))
    try:
        result = commands.toolkit("transcribe", "--model", "elsewhere", "a.flac", cwd=tmp_path)
    finally:
        away.rename(finished.root)
    assert (transcription.status, result.status) == (0, 0), transcription.errors + result.errors
    words = transcription.output.partition(" ")[2]
    assert words.split()
    assert result.output == f"a {words}"


def test_the_bundle_aligns_words_to_their_true_times(finished, commands, tmp_path):
    """Compared with the synthesiser's word times."""
    dev = finished.root / "corpus" / "dev"
    files = {"text": sorted(dev.rglob("*.trans.txt")), "true.ctm": sorted(dev.rglob("words.ctm"))}
    for name, parts in files.items():
        (tmp_path / name).write_text("".join(path.read_text() for path in parts))
    settings = ("--audio-dir", dev, "--text", tmp_path / "text", "--out", tmp_path / "out")
    result = commands.toolkit("align", "--model", finished.root / "final", *settings)
    assert result.status == 0, result.errors
    assert result.errors.startswith("sat: triphone GMMs on speaker-adapted features; ")
    assert "trained on 0.08 h of synthetic speech (3 voices)" in result.errors

    def starts(path):
        rows = [line.split() for line in path.read_text().splitlines()]
        return sorted((row[0], float(row[2]), row[4]) for row in rows)

    aligned, reference = starts(tmp_path / "out" / "words.ctm"), starts(tmp_path / "true.ctm")
    assert [(u, word) for u, _, word in aligned] == [(u, word) for u, _, word in reference]
    errors = sorted(abs(a - b) for (_, a, _), (_, b, _) in zip(aligned, reference, strict=True))
    assert errors[len(errors) // 2] <= 0.025  # measured: 8 ms
    assert errors[len(errors) * 95 // 100] <= 0.1  # measured: 40 ms
