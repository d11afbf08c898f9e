"""Networks in 8 bits against the same ones in float32."""

import pytest
import torch

from toolkit.models.config import CtcConfig
from toolkit.models.ctc import CtcModel, ctc_log_probs
from toolkit.models.store import quantize_int8, serialized_bytes


@pytest.mark.parametrize("bidirectional", [False, True])
def test_quantised_outputs_are_close_and_weights_a_quarter_of_the_size(bidirectional):
    torch.manual_seed(0)
    config = CtcConfig(8, 10, (6,), (5,), (2,), lstm_layers=2, hidden=64)
    model = CtcModel(CtcConfig(**{**vars(config), "bidirectional": bidirectional})).eval()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    small = quantize_int8(model)
    utterances = [torch.randn(length, 8) for length in (60, 41, 3)]
    for exact, quantised in zip(
        ctc_log_probs(model, utterances), ctc_log_probs(small, utterances), strict=True
    ):
        assert exact.shape == quantised.shape
        assert not len(exact) or 0 < (exact - quantised).abs().max() < 0.1
    assert serialized_bytes(small) < 0.4 * serialized_bytes(model)
    weights_afterwards = model.state_dict()
    assert all(torch.equal(value, weights_afterwards[name]) for name, value in weights.items())
