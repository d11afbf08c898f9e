"""Targets of copies against the times of the originals."""

from fractions import Fraction

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.align.store import AugmentedAlignments
from toolkit.features.augment import augmented
from toolkit.features.config import AugmentConfig
from toolkit.features.cut_audio import load_cut_audio


class Originals:
    def __init__(self, **targets):
        self.targets = targets
        self.ids = list(targets)

    def load(self, name):
        return self.targets[name]


class Copies:
    def __init__(self, **frames):
        self.frames = frames
        self.shards = [list(frames)]

    def num_frames(self, name):
        return self.frames[name]


def round_half_up(numerator, denominator):
    """Round half up, as the front end counts frames."""
    return (2 * numerator + denominator) // (2 * denominator)


@given(
    st.integers(400, 80_000), st.sampled_from(["0.8", "0.9", "0.95", "1.03", "1.1", "1.2", "1.5"])
)
def test_every_frame_has_the_target_at_its_time(samples, speed):
    factor = Fraction(speed)
    frames = round_half_up(samples, 160)
    copied = round_half_up(round_half_up(samples * factor.denominator, factor.numerator), 160)
    name = f"u_sp{speed}"
    view = AugmentedAlignments(Originals(u=torch.arange(frames)), Copies(**{name: copied}))
    targets = view.load(name).tolist()
    assert len(targets) == copied
    for t, i in enumerate(targets):
        time = (t + Fraction(1, 2)) * factor  # in the original's frames
        assert i <= time < i + 1 or (i == frames - 1 and time < frames + Fraction(3, 2) * factor)


@pytest.mark.parametrize("speed", [0.9, 1.1])
def test_targets_of_copies_match_their_audio(tmp_path, speed):
    from lhotse import Recording, SupervisionSegment
    from lhotse.cut import MonoCut

    # Levels that change every 70 ms; the target of a frame is its level.
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 8, 40)
    level = levels[np.arange(16000 * 2) // 1120]
    soundfile.write(tmp_path / "u.wav", 2.0**-level * np.sin(np.arange(32000)), 16000, "FLOAT")
    recording = Recording.from_file(tmp_path / "u.wav")
    supervision = SupervisionSegment("u", "u", 0, 2.0, speaker="a")
    cut = MonoCut("u", 0, 2.0, 0, supervisions=[supervision], recording=recording)
    copy = next(augmented([cut], AugmentConfig((speed,))))

    def measured_levels(cut):
        samples = load_cut_audio(cut).double()
        power = samples[: len(samples) // 160 * 160].view(-1, 160).square().mean(dim=1)
        return -(2 * power).log2() / 2

    targets = measured_levels(cut).round().long()
    expected = measured_levels(copy)
    view = AugmentedAlignments(Originals(u=targets), Copies(**{copy.id: len(expected)}))
    error = (view.load(copy.id) - expected).abs()
    # Frames that a change falls into are ambiguous: one or two of seven.
    assert (error < 0.1).double().mean() > 0.7
    for shift in (-2, 2):
        shifted = (view.load(copy.id).roll(shift) - expected).abs()
        assert (shifted < 0.1).sum() < 0.85 * (error < 0.1).sum()


def test_only_copies_of_aligned_utterances_have_targets():
    copies = Copies(a_aug=3, b_aug=3, **{"a_sp0.9": 3})
    view = AugmentedAlignments(Originals(a=torch.tensor([4, 5, 6])), copies)
    assert view.ids == ["a_aug", "a_sp0.9"]
    assert view.load("a_aug").tolist() == [4, 5, 6]


def test_an_alignment_of_another_length_is_refused():
    view = AugmentedAlignments(Originals(u=torch.arange(90)), Copies(**{"u_sp0.9": 110}))
    assert len(view.load("u_sp0.9")) == 100
