"""The roles of a run's systems in its bundle, and their cards."""

from dataclasses import replace

import pytest

from toolkit.decode.bundle import (
    Bundle,
    BundledSystem,
    BundleError,
    Card,
    read_card,
    write_card,
    write_systems,
)
from toolkit.decode.sources import Source, role_of

ADAPTED = BundledSystem("chain", "4gram", False, {"dev": 1.0}, ("speaker_known",))
LOG_MEL = BundledSystem("chain_fbank", "4gram", True, {"dev": 2.0}, ("speaker_unknown", "stream"))
CARD = Card(
    "chain",
    "TDNN-F on speaker-adapted features",
    words=480,
    hours=1.21,
    speakers=32,
    corpus="synthetic",
    lm="4gram+lstm",
    wer={"dev": 0.36, "test": 0.9},
    wer_unknown_speaker={"dev": 1.0, "test": 1.9},
    tuned_on=("dev",),
)


@pytest.fixture
def final(tmp_path):
    write_systems(tmp_path / "final", [ADAPTED, LOG_MEL])
    return tmp_path / "final"


def test_each_role_has_its_system(final):
    chosen = {role: Bundle(final).choose(role).name for role in (*ADAPTED.roles, *LOG_MEL.roles)}
    assert chosen == {
        "speaker_known": "chain",
        "speaker_unknown": "chain_fbank",
        "stream": "chain_fbank",
    }
    assert Bundle(final).choose().name == "chain_fbank"
    assert Bundle(final).choose(name="chain").name == "chain"
    with pytest.raises(BundleError, match="streaming needs a unidirectional LSTM"):
        Bundle(final).choose("stream", "chain")


def test_one_named_speaker_asks_for_the_system_for_speakers():
    unnamed = Source("a", "a", iter)
    assert role_of([unnamed, unnamed]) == "speaker_unknown"
    assert role_of([unnamed, replace(unnamed, speaker="ann")]) == "speaker_known"


def test_the_card_says_what_a_system_contains_and_reaches(final):
    write_card(final / "chain", CARD)
    assert str(read_card(final / "chain")) == (
        "chain: TDNN-F on speaker-adapted features with 4gram+lstm; 480 words; trained on 1.2 h of"
        " synthetic speech (32 voices); WER 0.90 % / 1.90 % (speaker known / unknown) on its own"
        " test set"
    )
    assert read_card(final / "chain_fbank") is None


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        (
            {"corpus": "an4", "hours": 0.54, "speakers": 57},
            "trained on 0.54 h of speech (corpus an4, 57 speakers); WER 0.90 % / 1.90 % (speaker"
            " known / unknown) on its own test set",
        ),
        (
            {"hours": 961.05, "wer": {"dev": 1.0}, "wer_unknown_speaker": {}},
            "trained on 961 h of synthetic speech (32 voices); WER 1.00 % (speaker known) on its"
            " own development set",
        ),
        (
            {"wer": {"dev": 1.0, "test-clean": 2.0, "test-other": 3.0}},
            "WER 2.00 % (speaker known) on its own test set test-clean, 3.00 % (speaker known) on"
            " its own test set test-other",
        ),
        (
            {"lm": "", "wer": {}, "corpus": "a\x1b[31m"},
            "trained on 1.2 h of speech (corpus a?[31m, 32 speakers)",
        ),
    ],
)
def test_cards_of_other_training_data(changes, ending):
    assert str(replace(CARD, **changes)).endswith(ending)


def test_a_damaged_card_is_named(final):
    write_card(final / "chain", CARD)
    card = final / "chain" / "card.json"
    card.write_text(card.read_text().replace("480", '"many"'))
    with pytest.raises(BundleError, match=r"card\.json"):
        read_card(final / "chain")
