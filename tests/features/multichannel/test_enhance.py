import json

import numpy as np
import pytest
import soundfile
from lhotse import Recording, SupervisionSegment
from lhotse.cut import MultiCut

from toolkit.corpus.manifest import speaker_of, text_of
from toolkit.features.multichannel.array import ArrayError, Components, load_array, load_components
from toolkit.features.multichannel.beamforming import BeamformingConfig
from toolkit.features.multichannel.echo import EchoConfig
from toolkit.features.multichannel.enhance import (
    EnhanceConfig,
    EnhanceError,
    enhance,
    enhance_utterance,
    enhanced_cuts,
)
from toolkit.storage.paths import UnsafePathError

RATE, LENGTH = 16000, 24000
QUICK = EnhanceConfig(
    echo=EchoConfig(taps=128, block=64), beamforming=BeamformingConfig("delay-and-sum")
)


def scene(seed, microphones=3, plays=True):
    """Bursts of speech, steady noise and an echo at microphones in one place."""
    rng = np.random.default_rng(seed)
    bursts = np.repeat(rng.random(30) < 0.6, LENGTH // 30) * (np.arange(LENGTH) > 4800)
    speech = np.tile(0.05 * bursts * rng.standard_normal(LENGTH), (microphones, 1))
    played = 0.2 * rng.standard_normal(LENGTH) if plays else np.zeros(LENGTH)
    path = rng.standard_normal(60) * np.exp(-np.arange(60) / 8) * 0.2
    echo = np.tile(np.convolve(played, path)[:LENGTH], (microphones, 1))
    noise = 0.01 * rng.standard_normal((microphones, LENGTH))
    parts = (speech, echo, speech + echo + noise, played)
    return tuple(part.astype(np.float32) for part in parts)


@pytest.fixture
def array_cut(tmp_path):
    def make(name, seed, plays=True, known=True):
        speech, echo, mixture, played = scene(seed, plays=plays)
        files = {"array": np.concatenate([mixture, played[None]])}
        files |= {"speech": speech} | ({"echo": echo} if plays else {}) if known else {}
        paths = {}
        for part, channels in files.items():
            paths[part] = str(tmp_path / f"{seed}.{part}.flac")
            soundfile.write(paths[part], channels.T, RATE, subtype="PCM_16")
        recording = Recording.from_file(paths.pop("array"), recording_id=name)
        supervision = SupervisionSegment(
            name, name, 0.0, LENGTH / RATE, channel=[0, 1, 2, 3], text="ONE TWO", speaker="anna"
        )
        return MultiCut(
            name, 0.0, LENGTH / RATE, [0, 1, 2, 3], [supervision], recording=recording,
            custom={"placement": "DP1"} | ({"components": paths} if known else {}),
        )  # fmt: skip

    return make


def test_measures_are_those_of_the_parts():
    speech, echo, mixture, played = scene(1)
    nothing = EnhanceConfig(cancel_echo=False, beamforming=BeamformingConfig("none"))
    found = enhance_utterance(mixture, played, nothing, Components(speech, echo))
    assert found.erle_db == pytest.approx(0)
    assert found.snr_gain_db == pytest.approx(0, abs=1e-3)
    np.testing.assert_allclose(found.samples, mixture[0], atol=1e-5)
    found = enhance_utterance(mixture, played, QUICK, Components(speech, echo))
    assert found.erle_db > 12
    # Three microphones in one place: noise falls by 4.8 dB besides the echo's part.
    alone = enhance_utterance(
        speech + mixture - speech - echo, 0 * played, QUICK, Components(speech, 0 * echo)
    )
    assert alone.erle_db is None
    assert alone.snr_gain_db == pytest.approx(10 * np.log10(3), abs=0.3)
    assert found.snr_gain_db > alone.snr_gain_db + 3


def test_measures_stay_unknown_with_the_parts():
    _, _, mixture, played = scene(1)
    found = enhance_utterance(mixture, played, QUICK)
    assert (found.erle_db, found.snr_gain_db) == (None, None)


def test_sets_are_written_measured_and_read_back(array_cut, tmp_path):
    sets = {"near": [array_cut("a/1", 1), array_cut("b", 2, plays=False)], "far": []}
    seen = []
    headline = enhance(sets, QUICK, tmp_path / "one", 1, lambda *done: seen.append(done))
    assert set(headline) == {"near ERLE dB", "near SNR gain dB"}
    assert headline["near ERLE dB"] > 12
    assert seen == [(1, 2), (2, 2)]
    cuts = enhanced_cuts(sets, tmp_path / "one")
    assert [cut.id for cut in cuts["near"]] == ["a/1", "b"]
    assert cuts["far"] == []
    cut = cuts["near"][0]
    assert (text_of(cut), speaker_of(cut), cut.duration) == ("ONE TWO", "anna", LENGTH / RATE)
    assert cut.custom == {"placement": "DP1"}
    array, parts = load_array(sets["near"][0]), load_components(sets["near"][0])
    direct = enhance_utterance(array.microphones, array.playback, QUICK, parts)
    np.testing.assert_allclose(cut.load_audio()[0], direct.samples, atol=1e-4)
    two = enhance(sets, QUICK, tmp_path / "two", 2)
    assert two == headline
    for path in sorted((tmp_path / "one").rglob("*.*")):
        other = tmp_path / "two" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == other.read_bytes()


def test_what_is_there_is_kept(array_cut, tmp_path):
    sets = {"near": [array_cut("a", 1)]}
    enhance(sets, QUICK, tmp_path / "out")
    report = tmp_path / "out" / "near" / "a.json"
    report.write_text(json.dumps({"erle_db": None, "snr_gain_db": 5.0}))
    assert enhance(sets, QUICK, tmp_path / "out") == {"near SNR gain dB": 5.0}


def test_unknown_parts_are_not_in_the_headline(array_cut, tmp_path):
    assert enhance({"near": [array_cut("a", 1, known=False)]}, QUICK, tmp_path / "out") == {}


def test_faults_name_the_utterance(array_cut, tmp_path):
    with pytest.raises(EnhanceError, match="no array recordings"):
        enhance({"near": []}, QUICK, tmp_path / "out")
    cut = array_cut("a", 1)
    (tmp_path / "1.array.flac").write_bytes(b"")
    with pytest.raises(ArrayError, match=r"a: .*1\.array\.flac"):
        enhance({"near": [cut]}, QUICK, tmp_path / "out")
    with pytest.raises(EnhanceError, match="no such file"):
        enhanced_cuts({"near": [cut]}, tmp_path / "out")
    cut = array_cut("b", 2)
    cut.channel = [0]
    cut.recording.sources[0].channels = [0]
    with pytest.raises(ArrayError, match="at least one microphone and a playback"):
        load_array(cut)


def test_ids_and_links_do_not_lead_out_of_the_folder(array_cut, tmp_path):
    out, other = tmp_path / "out", tmp_path / "other"
    enhance({"near": [array_cut("../../up", 1)]}, QUICK, out)
    assert sorted(path.name for path in out.rglob("*.flac")) == ["..%2F..%2Fup.flac"]
    (out / "away").symlink_to(other)
    with pytest.raises(UnsafePathError, match="away"):
        enhance({"away": [array_cut("b", 2)]}, QUICK, out)
    assert not other.exists()
