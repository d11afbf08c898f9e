"""`toolkit transcribe` as it is typed."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from toolkit.align.ctm_textgrid import TimedToken
from toolkit.cli import main
from toolkit.decode.decoded import DecodedUtterance, Transcript


def run(*arguments, stdin=None):
    return CliRunner().invoke(main, ["transcribe", *map(str, arguments)], input=stdin)


@pytest.fixture
def transcriber(monkeypatch):
    """A fake recogniser: the text is the file's name, and files called `broken` are faulty."""
    module = SimpleNamespace(calls=[])

    def transcribe(model, sources, jobs, details, device, fast, int8, batch):
        module.calls.append((model.name, details))
        module.device, module.int8, module.batch = device, int8, batch
        for source in sources:
            fault = f"{source.called}: not audio" if "broken" in source.name else ""
            text = "_".join(source.key.rpartition("/")[2].upper().split())
            word = TimedToken(text, 0.5, 1.0, 0.9)
            utterance = DecodedUtterance(word.token, (word,), 0.0, 2.0)
            yield Transcript(source.name, source.key, () if fault else (utterance,), fault)

    import sys

    module.transcribe_in_processes = transcribe
    monkeypatch.setitem(sys.modules, "toolkit.decode.transcribe", module)
    return module


def test_prints_a_line_per_recording_and_names_the_broken_at_the_end(transcriber):
    result = run("--model", "final", "a.wav", "broken.wav", "c.wav")
    assert result.exit_code == 1
    assert result.stdout == "a A\nc C\n"
    assert result.stderr == "Error: broken.wav: not audio\n"
    assert transcriber.calls == [("final", False)]
    assert run("--model", "final", "a.wav").exit_code == 0


def test_int8_is_passed_on_when_requested(transcriber):
    for flags, expected in ([], False), (["--int8"], True):
        assert run("--model", "final", *flags, "a.wav").exit_code == 0
        assert transcriber.int8 == expected


def test_batch_size_is_passed_on_when_requested(transcriber):
    for flags, expected in ([], 1), (["--batch", "4"], 4):
        assert run("--model", "final", *flags, "a.wav").exit_code == 0
        assert transcriber.batch == expected
    for flag in "--int8", "--stream":
        refused = run("--model", "final", "--batch", "4", flag, "a.wav")
        assert refused.exit_code == 2
        assert "batch" in refused.stderr


def test_json_has_a_line_for_every_recording(transcriber):
    result = run("--model", "final", "--format", "json", "a.wav", "broken.wav")
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert [document["name"] for document in documents] == ["a", "broken"]
    assert documents[0]["segments"][0]["words"][0]["confidence"] == 0.9
    assert documents[1]["error"] == "broken.wav: not audio"
    assert transcriber.calls == [("final", True)]


def test_no_recording_name_leads_outside_the_output_folder(transcriber, tmp_path):
    out, outside = tmp_path / "out", tmp_path / "other"
    out.mkdir()
    (out / "away").symlink_to(outside)
    ids = [f"/{outside}/one", f"{outside}/two", "../three", "away/four", "x" * 300]
    (tmp_path / "wav.scp").write_text("".join(f"{id} a.wav\n" for id in ids))
    result = run("--model", "final", "--out", out, tmp_path / "wav.scp")
    assert result.exit_code == 1
    assert "away/four.txt: lies outside" in result.stderr
    assert not outside.exists()
    written = sorted(path.name for path in out.rglob("*.txt"))
    assert written[:3] == ["one.txt", "three.txt", "two.txt"]
    assert len(written) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"out", "wav.scp"}


def test_writes_a_file_per_recording(transcriber, tmp_path):
    out = tmp_path / "out"
    for form, ending in (("text", "txt"), ("srt", "srt"), ("ctm", "ctm")):
        arguments = ("--format", form, "--out", out, "x/a.wav", "broken.wav")
        result = run("--model", "final", *arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert (out / f"a.{ending}").is_file()
        assert not (out / f"broken.{ending}").exists()
    assert (out / "a.txt").read_text() == "A\n"
    assert (out / "a.ctm").read_text() == "a 1 0.500 0.500 A 0.9000\n"
    result = run("--model", "final", "--out", out, "x/a.wav", "y/a.wav")
    assert result.exit_code == 1
    assert "x/a.wav and y/a.wav" in result.stderr


def test_lower_writes_words_in_lower_case(transcriber, tmp_path):
    assert run("--model", "final", "--lower", "a.wav").stdout == "a a\n"
    run("--model", "final", "--lower", "--format", "ctm", "--out", tmp_path, "a.wav")
    assert (tmp_path / "a.ctm").read_text() == "a 1 0.500 0.500 a 0.9000\n"


def test_device_is_passed_on(transcriber):
    run("--model", "final", "a.wav")
    assert transcriber.device == "cpu"
    run("--model", "final", "--device", "cpu:0", "a.wav")
    assert transcriber.device == "cpu:0"


@pytest.fixture
def talks(tmp_path):
    """Two recordings, and their texts beside them."""
    for name in ("day one/hello", "day one/my word", "day two/good bye"):
        path = tmp_path / "talks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".wav").write_bytes(b"")
        path.with_suffix(".txt").write_text("_".join(path.stem.upper().split()))
    return tmp_path / "talks"


def score(*arguments, stdin):
    return CliRunner().invoke(main, ["score", *map(str, arguments)], input=stdin)


@pytest.mark.parametrize("form", ["text", "json", "ctm"])
def test_printed_transcripts_of_a_folder_can_be_scored(transcriber, talks, tmp_path, form):
    hypotheses = run("--model", "final", "--format", form, talks).stdout
    scored = score("--ref", talks, "--hyp", "-", stdin=hypotheses)
    assert scored.stdout.splitlines()[0] == "%WER 0.00 [ 0 / 3, 0 ins, 0 del, 0 sub ]"
    (tmp_path / "text").write_text("hello-1 HELLO\nmy_word MY WORD\ngood_bye GOOD_BYE\n")
    scored = score("--ref", tmp_path / "text", "--hyp", "-", "--format", "auto", stdin=hypotheses)
    assert "1 not present in hyp" in scored.stdout


def test_ids_are_stems_unless_paths_are_requested(transcriber, talks):
    ids = {
        kind: [
            line.split()[0]
            for line in run("--model", "m", "--ids", kind, talks).stdout.splitlines()
        ]
        for kind in ("stem", "relative", "path")
    }
    assert ids["stem"] == ["hello", "my_word", "good_bye"]
    assert ids["relative"] == ["day_one/hello", "day_one/my_word", "day_two/good_bye"]
    assert ids["path"] == [f"{talks}/{id}.wav" for id in ids["relative"]]


def test_stems_that_are_the_same_are_named(transcriber, talks):
    (talks / "day two/hello.flac").write_bytes(b"")
    result = run("--model", "final", talks)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "day one/hello.wav and " in result.stderr
    assert "have the same id hello" in result.stderr
    assert "--ids relative" in result.stderr
    assert run("--model", "final", "--ids", "relative", talks).exit_code == 0
    assert run("--model", "final", "--out", talks / "out", talks).exit_code == 0


def test_paths_come_from_standard_input(transcriber):
    assert run("--model", "final", "-", stdin="a.wav\nb.wav\n").stdout == "a A\nb B\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "srt", "a.wav", "b.wav"], "--out"),
        (["--stream", "--format", "ctm", "a.wav"], "text or json"),
        (["--stream", "--out", "x", "a.wav"], "leave out --out and other values of --format"),
        (["--endpoint", "1", "a.wav"], "--piece and --endpoint need --stream"),
        (["--stream", "--device", "cuda", "a.wav"], "--stream runs only on the CPU"),
        (["--raw-rate", "8000", "a.wav"], "give - as AUDIO"),
        (["--stream", "--lower", "a.wav"], "--lower does not work with --stream"),
        (["--jobs", "2", "--stream", "a.wav"], "--jobs does not work with --stream"),
        (["--jobs", "2", "--raw-rate", "8000", "-"], "--jobs does not work with"),
        (["--channel", "0", "a.wav"], "--channel"),
        ([], "AUDIO"),
    ],
)
def test_contradictory_options_are_refused(arguments, message):
    result = run("--model", "final", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_several_recordings_share_no_file_of_subtitles(transcriber, talks, form):
    folder = talks / "day one"
    for name, listed in ("-", f"{folder}/hello.wav\n{folder}/my word.wav\n"), (folder, None):
        result = run("--model", "final", "--format", form, name, stdin=listed)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"a {form} file can contain only one recording: use --out" in result.stderr
    assert run("--model", "final", "--format", form, talks / "day two").exit_code == 0


@pytest.fixture
def stream(monkeypatch, audio, tmp_path):
    """A fake recogniser of streams whose text is the number of received pieces."""
    from toolkit.decode import recogniser
    from toolkit.decode import stream as streams

    class Recogniser:
        sampling_rate = 16000

        def warm_up(self, endpoint):
            pass

        def stream(self, endpoint, details):
            return Stream(details)

    class Stream:
        def __init__(self, details):
            self.num_pieces, self.details, self.has_sound = 0, details, False
            self.has_speech = False

        def push(self, samples):
            self.num_pieces += 1
            self.has_sound = self.has_speech = self.has_sound or bool(samples.any())
            return streams.StreamResult(
                f"PIECE {self.num_pieces}", None, 0.0, self.num_pieces / 10, 0.05
            )

        def finish(self):
            text = f"{self.num_pieces} PIECES"
            words = (TimedToken(text, 0.0, 0.1, 0.5),) if self.details else None
            return streams.StreamResult(
                text, DecodedUtterance(text, words), 0.0, self.num_pieces / 10, 0.05
            )

    monkeypatch.setattr(recogniser, "load_recogniser", lambda bundle, fast: Recogniser())
    return audio(tmp_path / "a.wav", 0.35)


def test_streams_print_final_text_or_every_update_as_json(stream):
    result = run("--model", "final", "--stream", stream)
    assert result.stdout == "a 4 PIECES\n"
    assert result.stderr.startswith(f"{stream}: 0.4 s of audio, real-time factor ")
    assert "after speech began" in result.stderr
    assert "silence" not in result.stderr
    result = run("--model", "final", "--stream", "--format", "json", "--piece", "0.2", stream)
    updates = [json.loads(line) for line in result.stdout.splitlines()]
    assert [update["text"] for update in updates] == ["PIECE 1", "PIECE 2", "2 PIECES"]
    assert [update["final"] for update in updates] == [False, False, True]
    assert updates[2]["words"][0]["confidence"] == 0.5


def test_raw_samples_stream_from_standard_input(stream):
    arguments = ("--stream", "--raw-rate", "16000", "--piece", "0.1", "-")
    result = run("--model", "final", *arguments, stdin=bytes(2 * 16000))
    assert result.stdout == "- 10 PIECES\n"
    assert result.stderr.splitlines()[-1] == (
        "Warning: -: nothing but digital silence, so it has no words"
    )


def test_broken_streams_are_named_at_the_end(stream, tmp_path):
    (tmp_path / "no.wav").write_text("text")
    result = run("--model", "final", "--stream", tmp_path / "no.wav", stream)
    assert result.exit_code == 1
    assert result.stdout == "a 4 PIECES\n"
    assert result.stderr.splitlines()[-1].startswith(f"Error: {tmp_path}/no.wav: ")


def test_recordings_that_failed_are_missing_hypotheses(transcriber, tmp_path):
    (tmp_path / "text").write_text("a-1 A-1\nbroken-2 B\n")
    hypotheses = run("--model", "final", "--format", "json", "broken-2.wav", "a-1.wav").stdout
    scored = score("--ref", tmp_path / "text", "--hyp", "-", stdin=hypotheses)
    assert scored.stdout.splitlines()[0] == "%WER 50.00 [ 1 / 2, 0 ins, 1 del, 0 sub ] [PARTIAL]"


@pytest.fixture
def final_bundles(tmp_path):
    """A run whose best system adapts to speakers; another is better without speakers."""
    from toolkit.decode.bundle import BundledSystem, RecogniserSettings, write_card, write_systems
    from toolkit.features.config import FrontendConfig
    from toolkit.fsa.config import Beam
    from toolkit.fsa.lattice import Weights

    final_bundles = tmp_path / "final"
    systems = [
        BundledSystem("sat", "4gram", False, {"dev": 12.5}, ("speaker_known",)),
        BundledSystem("lstm", "4gram", True, {"dev": 15.0}, ("speaker_unknown", "stream")),
    ]
    write_systems(final_bundles, systems)
    for system in systems:
        (final_bundles / system.name).mkdir()
        settings = RecogniserSettings(
            FrontendConfig(), Beam(), 0.1, Weights(0.1, 0.0), by_speaker=system.name == "sat"
        )
        (final_bundles / system.name / "recogniser.json").write_text(json.dumps(asdict(settings)))
        write_card(final_bundles / system.name, card_of(system.name))
    (tmp_path / "utt2spk").write_text("a ann\n")
    return final_bundles


def card_of(system):
    """The card of a system of `final_bundles`."""
    from toolkit.decode.bundle import Card

    rate = {"sat": 12.5, "lstm": 15.0}[system]
    return Card(system, "a model", 12, 0.5, 9, "an4", "4gram", {"test": rate})


UNNAMED = "no speaker is named: every recording counts as a separate speaker"


@pytest.mark.parametrize("audio", [("a.wav",), ("a.wav", "b.wav")])
def test_without_speakers_the_best_system_without_them_recognises(
    transcriber, final_bundles, audio
):
    result = run("--model", final_bundles, *audio)
    assert transcriber.calls == [("lstm", False)]
    assert result.stderr.splitlines() == [
        str(card_of("lstm")),
        f"{UNNAMED}. Name the speakers with --speakers: sat is the best system for known speakers",
    ]


def test_with_speakers_the_best_system_with_them_recognises(transcriber, final_bundles, tmp_path):
    speakers = ("--speakers", tmp_path / "utt2spk")
    result = run("--model", final_bundles, *speakers, "a.wav")
    assert transcriber.calls == [("sat", False)]
    assert result.stderr == f"{card_of('sat')}\n"
    result = run("--model", final_bundles, *speakers, "a.wav", "b.wav")
    warning = "Warning: 1 of 2 recordings, such as b.wav, have no speaker, so each counts"
    assert warning in result.stderr


@pytest.mark.parametrize("audio", [("a.wav",), ("a.wav", "b.wav")])
@pytest.mark.parametrize("named", ["folder", "system", "elsewhere"])
def test_a_system_that_adapts_warns_where_no_speaker_is_named(
    transcriber, final_bundles, tmp_path, audio, named
):
    model = final_bundles.rename(tmp_path / "bundles") if named == "elsewhere" else final_bundles
    if named == "elsewhere":
        (model / "systems.json").unlink()
    arguments = ("--model", model, "--system", "sat")
    if named != "system":
        arguments = ("--model", model / "sat")
    result = run(*arguments, *audio)
    assert transcriber.calls == [("sat", False)]
    assert result.stderr.splitlines()[-1] == (
        f"Warning: {UNNAMED}. sat adapts to speakers and makes more errors without them. Name the"
        " speakers with --speakers"
    )


def test_bundles_without_cards_say_nothing_of_speakers(transcriber, final_bundles):
    (final_bundles / "lstm/card.json").unlink()
    assert run("--model", final_bundles / "lstm", "a.wav", "b.wav").stderr == ""


def test_the_card_is_printed_first(transcriber, final_bundles):
    card = card_of("lstm")
    first = run("--model", final_bundles, "a.wav").stderr.splitlines()[0]
    assert first == str(card)
    assert "12 words; trained on 0.5 h of speech (corpus an4, 9 speakers); WER 15.00 %" in first
    fast = run("--model", final_bundles, "--fast", "a.wav").stderr.splitlines()[0]
    assert fast == f"without rescoring (error rates here are with rescoring): {card}"
