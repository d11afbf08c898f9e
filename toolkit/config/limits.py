"""The largest values of settings by which memory is allocated, in configurations and in bundles.

They are far above what anybody trains with: a value beyond is a slip of the keyboard or a file that
wants the machine's memory. Several that are large together may still need more than there is.
"""

from typing import Any

LONGEST_INTEGER = 1 << 63
MOST = {
    **dict.fromkeys(
        ("hidden", "channels", "input_dim", "lookahead", "rank", "bottleneck", "final"), 1 << 16
    ),
    **dict.fromkeys(("layers", "lstm_layers", "order"), 100),
    **dict.fromkeys(("kernels", "strides", "splice", "passes", "talkers"), 1000),
    **dict.fromkeys(("num_mel_bins", "mel_bins", "num_ceps", "dimension"), 10_000),
    **dict.fromkeys(("output_dim", "max_leaves", "pieces", "gaussians"), 10_000_000),
    **dict.fromkeys(("batch", "left_context", "right_context"), 1_000_000),
    **dict.fromkeys(("batch_frames", "max_frames", "pad_to"), 10_000_000),
    **dict.fromkeys(("max_active", "min_active"), 10_000_000),
    **dict.fromkeys(("width", "tune_width", "evaluation_width", "sweep", "symbols"), 1_000_000),
    **dict.fromkeys(("nbest", "count", "samples", "k", "ks"), 1_000_000),
    **dict.fromkeys(("taps", "block", "shift"), 1 << 24),
    **dict.fromkeys(("readers", "buffer", "threads", "task_cpus", "executor_cores"), 100_000),
    **dict.fromkeys(("epochs", "average_epochs", "iterations", "rounds"), 1_000_000),
    "vocabulary_size": 100_000_000,
    "sampling_rate": 1_000_000,
}
"""Largest values by the name of the field, wherever it is."""


def check_size(name: str, value: Any) -> None:
    """Check a setting, or each of a list.

    Args:
      name: of the field.
      value: what it is to be; all but integers pass.

    Raises:
      ValueError: it is too large.
    """
    for item in value if isinstance(value, tuple | list) else (value,):
        if isinstance(item, int):
            most = MOST.get(name, LONGEST_INTEGER - 1)
            if abs(item) > most:
                text = str(item) if abs(item) < LONGEST_INTEGER else "an integer of over 63 bits"
                raise ValueError(f"{name} is {text}, may be at most {most:,}")
