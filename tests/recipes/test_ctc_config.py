"""Settings of the CTC recipe that cannot be."""

import pytest

from recipes.librispeech.ctc_config import PROFILES, Config
from toolkit.config.settings import ConfigError, apply_overrides


@pytest.mark.parametrize(
    "override",
    [
        "evaluation_width=0",
        "sweep=[]",
        "sweep=[4, 0]",
        "prior_frames=-1",
        "dictionary_size=-5",
        "decode.tune_width=0",
        "decode.tune.lm_weights=[0, 1]",
        "train.model.strides=[3]",
        "records.window=12",
    ],
)
def test_settings_that_cannot_be(override, tmp_path):
    name = override.partition("=")[0].rpartition(".")[2]
    with pytest.raises(ConfigError, match=name if "model" not in override else "records.stride=2"):
        apply_overrides(Config(), [override], tmp_path)


def test_records_follow_the_network(tmp_path):
    for profile in PROFILES.values():
        both = ["train.model.strides=[3]", "records.stride=3"]
        assert apply_overrides(profile(), both, tmp_path).records.stride == 3
