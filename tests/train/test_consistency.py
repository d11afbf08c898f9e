import pytest
import torch

from toolkit.train.config import CtcTrainingConfig, LfmmiConfig, SpecAugmentConfig
from toolkit.train.specaugment import view_divergence


def test_the_divergence_has_no_gradient_for_the_other_view():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    view_divergence(logits.log_softmax(-1), torch.tensor([2, 2])).backward()
    softmax = logits.detach().softmax(-1)
    expected = softmax - softmax.flip(0)  # of a cross-entropy with the other view's outputs
    expected[:, 2] = 0
    torch.testing.assert_close(logits.grad, expected)


MASKS = SpecAugmentConfig(time_masks=1.0)


@pytest.mark.parametrize("weight", [0.0, 0.2])
def test_different_views_allow_any_consistency_weight(weight):
    assert LfmmiConfig(consistency=weight, specaugment=MASKS).consistency == weight


@pytest.mark.parametrize("config", [LfmmiConfig, CtcTrainingConfig])
def test_equal_views_need_weight_zero(config):
    assert config().consistency == 0
    with pytest.raises(ValueError, match=r"`consistency` is 0\.2"):
        config(consistency=0.2)
    with pytest.raises(ValueError, match="`consistency` is -1"):
        config(consistency=-1.0)
