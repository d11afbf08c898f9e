"""Checks of the CTC recipe's settings."""

import pytest

from recipes.librispeech.ctc_config import PROFILES, Config
from recipes.steps.ctc import check_devices
from toolkit.config.settings import ConfigError, apply_overrides
from toolkit.errors import ToolkitError
from toolkit.processes import ranks


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["features.frontend.num_mel_bins=40"],
            r"mel_bins` is 80, but the front end has 40 mel bins: set it to 40",
        ),
        (
            ["features.frontend.num_mel_bins=90"],
            r"mel_bins` is 80, but the front end has 90 mel bins: set it to 90",
        ),
        (
            ["train.specaugment.mel_bins=40"],
            r"mel_bins` is 40, but the front end has 80 mel bins: set it to 80",
        ),
        (
            ["features.frontend.kind=mfcc"],
            r"need features with mel bins, and mfcc has none: set both to 0",
        ),
    ],
)
def test_a_warp_must_know_the_mel_filters(overrides, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        apply_overrides(PROFILES["demo"](), overrides, tmp_path)
    off = ["train.specaugment.warp=0", "train.specaugment.cepstra=0"]
    apply_overrides(PROFILES["demo"](), [*overrides, *off], tmp_path)


@pytest.mark.parametrize(
    "overrides",
    [
        ["features.frontend.num_mel_bins=40", "train.specaugment.mel_bins=40"],
        ["features.frontend.kind=fbank", "features.frontend.num_mel_bins=80"],
    ],
)
def test_a_warp_takes_any_mel_filters(overrides, tmp_path):
    apply_overrides(PROFILES["demo"](), overrides, tmp_path)


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
        "devices=0",
    ],
)
def test_impossible_settings_are_refused(override, tmp_path):
    name = override.partition("=")[0].rpartition(".")[2]
    with pytest.raises(ConfigError, match=name if "model" not in override else "stride` is 2"):
        apply_overrides(Config(), [override], tmp_path)


def test_records_follow_the_network(tmp_path):
    for profile in PROFILES.values():
        strides = ["train.model.strides=[3]", "records.stride=3"]
        assert apply_overrides(profile(), strides, tmp_path).records.stride == 3


@pytest.mark.parametrize(
    ("profile", "total", "per_device", "readers", "buffer"),
    [("sys1", 96, 24, 8, 40), ("sys2", 240, 60, 16, 100), ("sys10", 300, 150, 16, 100)],
)
def test_profiles_match_the_papers_machines(
    profile, total, per_device, readers, buffer, monkeypatch
):
    """The paper's table (A10), and the batch of 96 of the equal-batch study."""
    for name, batch in ((profile, total), (f"{profile}-equal", 96)):
        config = PROFILES[name]()
        assert config.readers.utterances_per_batch * config.devices == batch
        assert config.readers.readers * config.devices == readers
        assert config.readers.buffer == buffer
        assert config.train.parallel.method == "ssgd"
        assert config.train.amp == "fp32"
        assert (config.evaluation.search, config.readers.pad_to) == ("words+lm", 1670)
    assert PROFILES[profile]().readers.utterances_per_batch == per_device
    assert (config.evaluation_width, config.tta.wer) == (64, (22.0, 20.0, 19.0))
    with pytest.raises(ToolkitError, match=rf"nproc_per_node {config.devices} .*devices=none"):
        check_devices(config.devices)
    monkeypatch.setattr(ranks, "world_size", lambda: config.devices)
    check_devices(config.devices)
    check_devices(None)
