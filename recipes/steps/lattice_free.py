"""The TDNN-F of lattice-free MMI and its training, sized by the hours of training speech."""

import math

from toolkit.fsa.config import PhoneNgramConfig
from toolkit.models.tdnnf import TdnnfConfig
from toolkit.train.lfmmi import LfmmiChunkConfig, LfmmiConfig

SMALLEST_AT, LARGEST_AT = 0.5, 100.0
"""Hours up to which the network is the smallest, and from which on it is the largest."""
LAYERS = 7, 12
HIDDEN = 256, 1024
BOTTLENECK = 64, 128
SMALL_UP_TO = 20.0
"""Hours up to which one processor core trains the network fastest, dropout is used, all speakers
are trained on (an eighth of them would teach the network more than they tell, held out), and the
denominator has phone bigrams, better than 4-grams on AN4; with more hours it is as in Kaldi."""
DROPOUT = 0.3


def lattice_free(hours: float, epochs: int) -> LfmmiConfig:
    """Return a TDNN-F for `hours` of training speech and its training with lattice-free MMI.

    From 7 layers of 256 values, one of them at 100 Hz, to 12 of 1,024, three at 100 Hz, as in
    Kaldi's recipes; between them by the logarithm of the hours. The weights of the last
    epochs are averaged: of the last 4 of 8, of the last 6 of 16.

    Args:
      hours: of training speech, without copies.
      epochs: passes over it and its copies.
    """
    share = math.log(hours / SMALLEST_AT) / math.log(LARGEST_AT / SMALLEST_AT)
    share = min(1.0, max(0.0, share))
    layers, full = round(LAYERS[0] + (LAYERS[1] - LAYERS[0]) * share), 1 + round(2 * share)
    model = TdnnfConfig(
        hidden=_between(*HIDDEN, share),
        bottleneck=_between(*BOTTLENECK, share),
        final=_between(*BOTTLENECK, share) * 3 // 2,
        strides=(*[1] * full, 0, *[3] * (layers - full - 1)),
        dropout=DROPOUT if hours <= SMALL_UP_TO else 0.0,
    )
    return LfmmiConfig(
        epochs=epochs,
        initial_rate=2e-3,
        final_rate=1e-4,
        amp="auto",
        threads=1 if hours <= SMALL_UP_TO else None,
        average_epochs=2 + epochs // 4,
        prefer_average=True,
        valid_utterances=0 if hours <= SMALL_UP_TO else 100,
        model=model,
        pieces=LfmmiChunkConfig(
            batch_frames=1600, left_context=model.context, right_context=model.context
        ),
        ngram=PhoneNgramConfig(order=3, extra_states=0)
        if hours <= SMALL_UP_TO
        else PhoneNgramConfig(),
    )


def _between(small: int, large: int, share: float) -> int:
    """Interpolate log-linearly, to a multiple of 16."""
    return 16 * round(small * (large / small) ** share / 16)
