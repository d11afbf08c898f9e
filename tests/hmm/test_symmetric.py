import torch

from toolkit.hmm import transforms


def test_weighted_outer_products_equal_the_written_out_sum(monkeypatch):
    monkeypatch.setattr(transforms, "BLOCK_FRAMES", 4)  # several blocks
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(11, 3, generator=generator).double()
    weights = torch.rand(11, 2, generator=generator).double()
    sums = transforms.unpack(transforms.weighted_outer(x, weights), 3)
    for j in range(2):
        expected = sum(weights[t, j] * torch.outer(x[t], x[t]) for t in range(11))
        torch.testing.assert_close(sums[j], expected)
