from dataclasses import replace

import pytest

from recipes.librispeech.config import demo


@pytest.mark.parametrize(
    ("changes", "trained"),
    [
        ({"bundle": "blstm"}, False),
        ({"bundle": "blstm", "bidirectional": True}, True),
        ({"bundle": "lstm_ce"}, True),
        ({"bundle": "lstm_ce", "lstm": False}, False),
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
