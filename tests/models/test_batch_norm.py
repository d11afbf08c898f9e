import pytest
import torch
from torch import nn

from toolkit.models.ctc import MaskedBatchNorm

LENGTHS = torch.tensor([7, 3, 5])


def example(padding=0.0):
    x = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.arange(7) < LENGTHS[:, None]
    return torch.where(mask[:, :, None], x, torch.tensor(padding, dtype=torch.float64)), mask


def trained(x, mask, steps=1):
    norm = MaskedBatchNorm(4).double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, -1.0, 0.5]))
        norm.bias.copy_(torch.tensor([0.0, 1.0, 2.0, -3.0]))
    for _ in range(steps):
        y = norm(x, mask)
    return norm, y


@pytest.mark.parametrize("padding", [0.0, 1e6, float("nan"), float("inf")])
def test_equals_torch_over_the_real_frames(padding):
    x, mask = example(padding)
    norm, y = trained(x, mask, steps=3)
    reference = nn.BatchNorm1d(4).double()
    reference.load_state_dict(norm.state_dict(), strict=False)
    reference.reset_running_stats()
    for _ in range(3):
        expected = reference(x[mask])
    torch.testing.assert_close(y[mask], expected)
    assert (y[~mask] == 0).all()
    torch.testing.assert_close(norm.running_mean, reference.running_mean)
    torch.testing.assert_close(norm.running_var, reference.running_var)
    norm.eval()
    torch.testing.assert_close(norm(x, mask)[mask], reference.eval()(x[mask]))
    assert (norm(x, mask)[~mask] == 0).all()


@pytest.mark.parametrize("padding", [0.0, 1e6, float("nan")])
def test_gradients_equal_torch_and_none_reach_the_padding(padding):
    x, mask = example(padding)
    x.requires_grad_()
    weight = torch.randn(3, 7, 4, dtype=torch.float64)
    norm, y = trained(x, mask)
    (y * weight).sum().backward()
    real = example()[0][mask].requires_grad_()
    reference = nn.BatchNorm1d(4).double()
    reference.load_state_dict(norm.state_dict(), strict=False)
    (reference(real) * weight[mask]).sum().backward()
    torch.testing.assert_close(x.grad[mask], real.grad)
    assert (x.grad[~mask] == 0).all()
    torch.testing.assert_close(norm.weight.grad, reference.weight.grad)


def test_without_a_mask_all_frames_count():
    x, _ = example()
    full = torch.ones(3, 7, dtype=torch.bool)
    with_mask, without = trained(x, full), trained(x, None)
    torch.testing.assert_close(with_mask[1], without[1])
    for name, value in with_mask[0].state_dict().items():
        torch.testing.assert_close(without[0].state_dict()[name], value)


def test_outputs_of_one_frame_or_none_are_finite():
    x, _ = example()
    for frames in (0, 1):
        mask = torch.zeros(3, 7, dtype=torch.bool)
        mask[0, :frames] = True
        norm, y = trained(x, mask)
        assert torch.isfinite(y).all()
        assert torch.isfinite(norm.running_var).all()


def test_half_precision_input_is_normalised_in_float32():
    x, mask = example()
    norm = MaskedBatchNorm(4)
    y = norm(x.bfloat16() + 100, mask)
    assert y.dtype == torch.float32
    assert abs(y[mask].mean(0)).max() < 1e-4
