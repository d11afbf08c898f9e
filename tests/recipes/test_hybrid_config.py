from dataclasses import replace

import pytest

from recipes.librispeech.config import PROFILES, an4, demo


@pytest.mark.parametrize(
    ("changes", "trained"),
    [
        ({"bundle": "blstm"}, False),
        ({"bundle": "blstm", "bidirectional": True}, True),
        ({"bundle": "lstm_ce"}, True),
        ({"bundle": "lstm_ce", "lstm": False}, False),
        ({"bundle": "chain_fbank"}, False),
        ({"bundle": "chain_fbank", "chain_features": "both"}, True),
        ({"neural_systems": ("sat", "lstm_fmllr")}, False),
        ({"neural_systems": ("sat", "lstm_fmllr"), "adapted": True}, True),
    ],
)
def test_systems_that_are_named_must_be_trained(changes, trained):
    config = replace(demo(), **changes)
    if trained:
        config.refuse_contradictions()
    else:
        with pytest.raises(ValueError, match="these settings do not train"):
            config.refuse_contradictions()


def test_networks_are_named_after_the_end_of_their_training():
    assert demo().networks == ["lstm_smbr", "chain"]
    assert replace(demo(), lstm=False, chain=False).networks == []


def test_an4_trains_a_second_tdnnf_for_unknown_speakers():
    assert an4().networks == ["lstm_smbr", "chain", "chain_fbank"]
    assert an4().needs_adapted
    assert replace(an4(), chain=False).networks == ["lstm_smbr"]
    assert not replace(an4(), chain_features="fbank").needs_adapted
    others = [make().networks for name, make in PROFILES.items() if name != "an4"]
    assert not any("chain_fbank" in networks for networks in others)
