"""Huge integers in settings and bundles are refused clearly, before anything is allocated."""

import dataclasses

import pytest

from recipes.farfield_ssl.config import PROFILES as FARFIELD
from recipes.librispeech.config import PROFILES
from recipes.librispeech.ctc_config import PROFILES as CTC
from toolkit.config.fields import Settings, from_plain
from toolkit.config.settings import ConfigError, apply_overrides, load_yaml
from toolkit.features.config import FrontendConfig
from toolkit.models.config import LstmConfig

HUGE = 10**10


@pytest.mark.parametrize(
    "key",
    [
        "cepstra.frontend.num_ceps",
        "fbank.frontend.num_mel_bins",
        "mono.em.gaussians",
        "tri.tree.max_leaves",
        "lda_mllt.dimension",
        "lda_mllt.splice",
        "ce.model.hidden",
        "ce.model.layers",
        "ce.chunks.chunks_per_batch",
        "ce.chunks.left_context",
        "ce.whole_utterances.batch_frames",
        "decode.beam.max_active",
        "gmm_decode.beam.max_active",
        "rescoring.order",
        "nbest.count",
        "lang.vocabulary_size",
    ],
)
def test_a_setting_that_is_far_too_large_is_refused(key, tmp_path):
    config = PROFILES["demo"]()
    with pytest.raises(ConfigError, match=rf"`{key}`.*{HUGE} but must be"):
        apply_overrides(config, [f"{key}={HUGE}"], tmp_path)
    *sections, leaf = key.split(".")
    path = tmp_path / "my.yaml"
    path.write_text("".join(f"{'  ' * i}{s}:\n" for i, s in enumerate(sections)))
    path.write_text(f"{path.read_text()}{'  ' * len(sections)}{leaf}: {HUGE}\n")
    with pytest.raises(ConfigError, match=rf"my\.yaml.*{HUGE}"):
        load_yaml(config, path)


def test_any_integer_fits_into_63_bits(tmp_path):
    with pytest.raises(ConfigError, match="over 63 bits"):
        apply_overrides(PROFILES["demo"](), [f"augment.seed={'9' * 400}"], tmp_path)
    assert apply_overrides(PROFILES["demo"](), [f"augment.seed={2**63 - 1}"], tmp_path)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(FrontendConfig, "num_mel_bins"), (LstmConfig, "hidden"), (LstmConfig, "output_dim")],
)
def test_limits_hold_in_bundles_too(kind, name):
    with pytest.raises(ValueError, match=f"`{name}` is {HUGE} but must be"):
        from_plain(kind, {name: HUGE})


@pytest.mark.parametrize("profiles", [PROFILES, CTC, FARFIELD])
def test_every_section_of_a_profile_checks_its_fields(profiles):
    for profile in profiles.values():
        sections = list(_sections(profile()))
        assert sections
        assert {type(section) for section in sections if not isinstance(section, Settings)} == set()


def _sections(config):
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield value
            yield from _sections(value)
