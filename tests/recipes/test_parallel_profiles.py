"""The methods of data-parallel training that the recipes' profiles choose."""

from dataclasses import fields, is_dataclass

import pytest

from recipes.farfield_ssl.config import PROFILES as FARFIELD
from recipes.librispeech.config import PROFILES as HYBRID
from recipes.librispeech.ctc_config import PROFILES as CTC
from toolkit.parallel.config import ParallelConfig


def trainings(config):
    """Yield every section of a configuration that has a data-parallel method."""
    if not is_dataclass(config):
        return
    if isinstance(getattr(config, "parallel", None), ParallelConfig):
        yield config
    for field in fields(config):
        yield from trainings(getattr(config, field.name))


@pytest.mark.parametrize("profiles", [FARFIELD, HYBRID, CTC], ids=["farfield", "hybrid", "ctc"])
def test_no_profile_pairs_gtc_with_adam(profiles):
    for name, profile in profiles.items():
        configs = list(trainings(profile()))
        assert configs, name
        pairs = {(training.parallel.method, training.optimizer) for training in configs}
        assert ("gtc", "adam") not in pairs, name
