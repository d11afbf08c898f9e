import pytest
import torch

from toolkit.features.low_frame_rate import centre, stack


@pytest.mark.parametrize("num_frames", [0, 1, 2, 3, 4, 7, 9, 10])
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_equals_a_loop(num_frames, offset):
    x = torch.arange(num_frames * 2.0).reshape(num_frames, 2)
    rows, middles = [], []
    start = offset
    while start < num_frames:
        rows.append(torch.cat([x[min(t, num_frames - 1)] for t in range(start, start + 3)]))
        middles.append(min(start + 1, num_frames - 1))
        start += 3
    expected = torch.stack(rows) if rows else torch.empty(0, 6)
    assert torch.equal(stack(x, offset), expected)
    assert centre(num_frames, offset).tolist() == middles


@pytest.mark.parametrize("factor", [1, 2, 5])
def test_other_factors_cover_every_frame_once(factor):
    x = torch.arange(10.0).unsqueeze(1)
    assert stack(x, 0, factor).flatten()[:10].tolist() == list(range(10))
    assert len(centre(10, 0, factor)) == len(stack(x, 0, factor))


def test_the_three_offsets_together_centre_on_every_inner_frame():
    assert sorted(torch.cat([centre(12, o) for o in range(3)]).tolist()) == [*range(1, 12), 11]


@pytest.mark.parametrize("offset", [-1, 3])
def test_refuses_an_offset_out_of_range(offset):
    with pytest.raises(ValueError, match="offset"):
        stack(torch.zeros(5, 1), offset)
