"""The alterations of the robustness benchmark, and its table on a fake recogniser."""

import numpy as np
import pytest
import torch
from lhotse import MonoCut

from benchmarks import robustness
from benchmarks.robustness import (
    ALTERATIONS,
    RATE,
    fade,
    gain,
    gate,
    lead_in,
    without_speech,
    zeros,
)
from toolkit.corpus.manifest import make_cut, probe_recording, write_cuts
from toolkit.decode.decoded import DecodedUtterance, Transcript

SPEECH = np.concatenate([np.full(RATE, 0.5), np.full(RATE, 0.001), np.full(RATE, -0.4)])
SPEECH = SPEECH.astype(np.float32)


@pytest.mark.parametrize(("where", "position"), [("before", 0.0), ("between", 1.5), ("after", 3.0)])
def test_zeros_are_inserted(where, position):
    altered = zeros(0.3, where)(SPEECH, 1.5)
    begin = round(position * RATE)
    assert np.array_equal(altered[:begin], SPEECH[:begin])
    assert not altered[begin : begin + 4800].any()
    assert np.array_equal(altered[begin + 4800 :], SPEECH[begin:])


def test_a_gate_mutes_only_quiet_pieces():
    gated = gate(SPEECH, 1.5)
    assert not gated[RATE : 2 * RATE].any()
    assert np.array_equal(np.delete(gated, slice(RATE, 2 * RATE)), SPEECH[abs(SPEECH) > 0.1])


def test_levels_and_edges():
    assert np.allclose(gain(-20)(SPEECH, 0.0), SPEECH / 10)
    quiet = lead_in(SPEECH, 0.0)
    assert 20 * np.log10(quiet[:RATE].std()) == pytest.approx(-60, abs=0.2)
    assert np.array_equal(quiet[RATE:], SPEECH)
    faded = fade(SPEECH, 0.0)
    assert faded[0] == faded[-1] == 0
    assert np.array_equal(faded[3200:-3200], SPEECH[3200:-3200])
    assert all(alter(SPEECH, 1.5).dtype == np.float32 for alter in ALTERATIONS.values())


def test_recordings_without_speech():
    recordings = dict(without_speech(22, 1.0))
    assert len(recordings) == 22
    assert len({name.partition("-")[0] for name in recordings if name[-3:] < "011"}) == 11
    for samples in recordings.values():
        assert samples.dtype == np.float32
        assert len(samples) == RATE
        assert np.abs(samples).max() <= 1


def test_the_table_compares_errors(audio, tmp_path, monkeypatch):
    """The fake recogniser loses its words where the samples begin with zeros."""

    def transcribe(model, sources, details):
        for source in sources:
            samples = torch.cat(list(source.blocks(RATE, 20.0)))
            is_heard = samples[:100].any() if source.name.startswith("u") else samples.any()
            text = "A B" if is_heard else ""
            yield Transcript(source.name, source.key, (DecodedUtterance(text),))

    monkeypatch.setattr(robustness, "transcribe", transcribe)
    recording, _ = probe_recording(audio(tmp_path / "a.wav", seconds=1.0), "a")
    cuts: list[MonoCut] = [make_cut(id, recording, "A B", "s") for id in ("u1", "u2")]
    write_cuts(cuts, tmp_path / "cuts.jsonl")
    lines = list(robustness.measure(tmp_path, tmp_path / "cuts.jsonl"))
    assert "(4 words)" in lines[0]
    errors = {line[:24].strip(): int(line[24:31]) for line in lines[1:-2]}
    assert errors["as they are"] == 0
    assert errors["0.3 s of zeros before"] == 4
    assert errors["1 s of zeros after"] == 0
    assert "without speech: 362 words in 181 of 200 recordings" in lines[-1]
