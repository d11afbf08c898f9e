import torch

from toolkit.features.splice import splice


def test_frames_stand_between_their_neighbours():
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    joined = splice(x, 2, 1)
    assert joined.shape == (7, 12)
    for t in range(7):
        times = [min(max(t + offset, 0), 6) for offset in (-2, -1, 0, 1)]
        assert torch.equal(joined[t], torch.cat([x[time] for time in times]))


def test_no_context_changes_nothing():
    x = torch.arange(6.0).view(3, 2)
    assert torch.equal(splice(x, 0, 0), x)


def test_one_frame_and_none():
    assert splice(torch.ones(1, 2), 4, 4).tolist() == [[1.0] * 18]
    assert splice(torch.empty(0, 2), 1, 1).shape == (0, 6)
