"""Settings of GMM systems and of alignments that make no sense are refused."""

import pytest

from recipes.librispeech.config import demo
from toolkit.config.settings import ConfigError, apply_overrides


@pytest.mark.parametrize(
    "setting",
    [
        "tri.em.gaussians=0",
        "sat.em.min_occupancy=-1",
        "lda_mllt.em.max_failed=1.5",
        "lda_mllt.splice=-1",
        "lda_mllt.dimension=0",
        "mono.max_utterances=0",
        "tri.em.align.beam=-1",
        "tri.em.align.acoustic_scale=0",
        "tri.em.align.retries=4,-1",
        "tri.em.align.max_active=1",
        "align.max_failed=-0.1",
    ],
)
def test_meaningless_settings_are_refused(setting, tmp_path):
    section = setting.rpartition(".")[2].partition("=")[0]
    with pytest.raises(ConfigError, match=section):
        apply_overrides(demo(), [setting], tmp_path)
