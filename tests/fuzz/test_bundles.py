"""Damaged recogniser bundles."""

import dataclasses
import json

import torch

from tests.decode.test_ctc_bundle import write
from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.trial import Reader
from toolkit.align.config import EmConfig
from toolkit.decode.bundle import (
    SETTINGS,
    Bundle,
    BundledSystem,
    Card,
    FirstPass,
    NeuralRescoring,
    RecogniserSettings,
    Rescoring,
    read_card,
    read_settings,
    read_systems,
    write_card,
    write_systems,
)
from toolkit.decode.ctc.recogniser import CtcRecogniser
from toolkit.features.config import FrontendConfig
from toolkit.fsa.config import Beam, RescoreLimits
from toolkit.fsa.lattice import Weights


def settings(folder):
    weights, beam = Weights(0.1, -1.0), Beam()
    recogniser = RecogniserSettings(
        FrontendConfig(num_mel_bins=8),
        beam,
        0.1,
        weights,
        {"search": "own"},
        rescoring=Rescoring(weights, RescoreLimits()),
        neural=NeuralRescoring(10, 0.5),
        by_speaker=True,
        first_pass=FirstPass(beam, (2.0,), weights, 0.1, EmConfig()),
    )
    (folder / SETTINGS).write_text(json.dumps(dataclasses.asdict(recogniser)))


def systems(folder):
    roles = {"ctc": ("speaker_unknown", "stream"), "sat": ("speaker_known",)}
    bundled = [BundledSystem(s, "3gram", s == "ctc", {"dev": 12.5}, roles[s]) for s in roles]
    write_systems(folder, bundled)
    for system in bundled:
        (folder / system.name).mkdir()


def use_systems(folder):
    return [str(system) for system in read_systems(folder)], Bundle(folder).choose()


def card(folder):
    wer = {"dev": 12.5, "test": 13.0}
    write_card(folder, Card("sat", "GMMs", 12, 0.5, 9, "an4", "3gram", wer, wer, ("dev",)))


READERS = {
    "card": Reader(card, read_card),
    "settings": Reader(settings, read_settings),
    "systems": Reader(systems, use_systems),
    "ctc": Reader(
        write,
        lambda folder: CtcRecogniser(folder / "final" / "ctc").recognise_features(
            torch.zeros(20, 8), details=True
        ),
        files="final/ctc/**/*",
    ),
}
