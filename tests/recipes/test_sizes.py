import dataclasses

import pytest

from recipes.librispeech.config import Config
from recipes.librispeech.sizes import TABLE, config_for_hours, sizes
from recipes.steps.settings import lattice_free
from toolkit.config.settings import to_plain
from toolkit.corpus.config import CorpusConfig


@pytest.mark.parametrize("row", TABLE)
def test_sizes_match_the_rows_of_the_table(row):
    assert dataclasses.astuple(sizes(row.hours)) == pytest.approx(dataclasses.astuple(row))


def test_sizes_grow_with_the_hours_and_stop_at_the_ends():
    hours = [0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 2, 7, 30, 300, 1000, 20_000]
    for name in ("leaves", "gaussians", "senones", "biphones", "hidden"):
        values = [getattr(sizes(h), name) for h in hours]
        assert values == sorted(values)
    assert sizes(0.001) == TABLE[0]
    assert sizes(20_000) == TABLE[-1]
    with pytest.raises(ValueError, match="hours is 0"):
        sizes(0)


@pytest.mark.parametrize(
    ("hours", "strides", "hidden", "bottleneck"),
    [
        (0.01, (1, 0, 3, 3, 3, 3, 3), 256, 64),
        (0.5, (1, 0, 3, 3, 3, 3, 3), 256, 64),
        (8, (1, 1, 0, 3, 3, 3, 3, 3, 3, 3), 528, 96),
        (100, (1, 1, 1, 0, 3, 3, 3, 3, 3, 3, 3, 3), 1024, 128),
        (5000, (1, 1, 1, 0, 3, 3, 3, 3, 3, 3, 3, 3), 1024, 128),
    ],
)
def test_factorised_networks_grow_with_the_hours(hours, strides, hidden, bottleneck):
    config = lattice_free(hours, epochs=5)
    model = config.model
    assert (model.strides, model.hidden, model.bottleneck) == (strides, hidden, bottleneck)
    assert config.chunks.left_context == config.chunks.right_context == model.context
    assert config.epochs == 5
    assert config.average_epochs == 3


@pytest.mark.parametrize(("hours", "held_out"), [(0.01, 0), (20, 0), (20.1, 100), (5000, 100)])
def test_speakers_are_held_out_where_there_are_enough_hours(hours, held_out):
    config = lattice_free(hours, epochs=5)
    assert config.valid_utterances == held_out
    assert config.prefer_average


def test_halfway_is_the_geometric_mean():
    assert sizes((0.5 * 1.5) ** 0.5).leaves == pytest.approx((250 * 500) ** 0.5)


def test_half_an_hour_gives_a_small_configuration():
    corpus = CorpusConfig("table", dev_speakers=1)
    config = config_for_hours(0.5, corpus=corpus)
    assert config.corpus == corpus
    assert config.check == Config().check
    assert (config.tri.tree.max_leaves, config.sat.em.gaussians) == (250, 2000)
    assert (config.ce.model.hidden, config.ce.model.layers, config.senones.max_leaves) == (
        256,
        3,
        250,
    )
    assert config.augment.speeds == (0.9, 1.1)
    assert (config.blstm.model.hidden, config.blstm.epochs) == (192, config.ce.epochs)
    assert (config.blstm.chunks.left_context, config.blstm.chunks.right_context) == (10, 10)


@pytest.mark.parametrize("hours", [0.02, 0.3, 4, 40, 900])
def test_the_same_hours_give_the_same_settings(hours):
    assert to_plain(config_for_hours(hours)) == to_plain(config_for_hours(hours))


def test_explicit_sections_override_the_sizes():
    settings = config_for_hours(5.0).ce
    assert config_for_hours(0.5, ce=settings).ce == settings
