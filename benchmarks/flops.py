"""Operations that training needs."""

from toolkit.models.lstm import LstmConfig


def flops_per_frame(config: LstmConfig) -> int:
    """Floating point operations of training on one frame: 2 per weight forward, 4 backward.

    Biases, activations and the look-ahead's extra frames are not counted.
    """
    hidden = config.hidden
    first = config.input_dim + hidden
    weights = 4 * hidden * (first + (config.layers - 1) * 2 * hidden) + hidden * config.output_dim
    return 6 * weights
