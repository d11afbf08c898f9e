from dataclasses import replace

import pytest

from recipes.farfield_ssl import config as farfield_config
from recipes.librispeech import ctc_config
from recipes.librispeech.config import PROFILES, an4, demo, kaldi
from toolkit.corpus.config import CorpusConfig
from toolkit.features.config import AugmentConfig


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
def test_systems_named_in_the_settings_must_be_trained(changes, trained):
    config = replace(demo(), **changes)
    if trained:
        config.refuse_contradictions()
    else:
        with pytest.raises(ValueError, match="these settings do not train"):
            config.refuse_contradictions()


def test_networks_are_named_after_their_last_training():
    assert demo().networks == ["lstm_smbr", "chain"]
    assert replace(demo(), lstm=False, chain=False).networks == []


def test_an4_trains_a_second_tdnnf_for_unknown_speakers():
    assert an4().networks == ["lstm_smbr", "chain", "chain_fbank"]
    assert an4().needs_adapted
    assert replace(an4(), chain=False).networks == ["lstm_smbr"]
    assert not replace(an4(), chain_features="fbank").needs_adapted
    networks_by_profile = [make().networks for name, make in PROFILES.items() if name != "an4"]
    assert not any("chain_fbank" in networks for networks in networks_by_profile)


def test_copies_and_recipes_that_need_audio_are_refused_with_only_features():
    corpus = CorpusConfig("kaldi", features="kaldi")
    with pytest.raises(ValueError, match="augment"):
        replace(kaldi(), corpus=corpus).refuse_contradictions()
    replace(kaldi(), corpus=corpus, augment=AugmentConfig()).refuse_contradictions()
    for config in (ctc_config.kaldi(), farfield_config.demo()):
        with pytest.raises(ValueError, match=r"needs audio|from audio"):
            replace(config, corpus=corpus).refuse_contradictions()
    unnamed = CorpusConfig("table", speakers="auto")
    with pytest.raises(ValueError, match="names its speakers"):
        replace(farfield_config.demo(), corpus=unnamed).refuse_contradictions()
    with pytest.raises(ValueError, match="needs name='kaldi'"):
        CorpusConfig("table", features="kaldi")
