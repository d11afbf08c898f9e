import pytest
import torch

from toolkit.models.lstm import run_bidirectional


def by_rows(lstm, inputs, lengths):
    """Run the network on each row separately, without padding."""
    outputs = inputs.new_zeros(*inputs.shape[:2], 2 * lstm.hidden_size)
    for row, length in enumerate(lengths.clamp(min=1).tolist()):
        outputs[row, :length] = lstm(inputs[row : row + 1, :length])[0][0]
    return outputs


class Packable(torch.nn.Module):
    """Not an `nn.LSTM`, like a quantised one: its rows are packed, as on a GPU."""

    def __init__(self, lstm):
        super().__init__()
        self.lstm = lstm

    def forward(self, packed):
        return self.lstm(packed)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("lengths", [[4, 9, 1, 7], [9, 9], [0, 5]])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_outputs_and_gradients_equal_those_of_separate_rows(layers, lengths, precision):
    torch.manual_seed(layers)
    lstm = torch.nn.LSTM(3, 5, layers, batch_first=True, bidirectional=True).to(precision)
    lengths = torch.tensor(lengths)
    x = torch.randn(len(lengths), 9, 3, dtype=precision, requires_grad=True)
    weights = torch.randn(len(lengths), 9, 10, dtype=precision)
    results = []
    for run, network in (
        (by_rows, lstm),
        (run_bidirectional, lstm),
        (run_bidirectional, Packable(lstm)),
    ):
        output = run(network, x, lengths)
        leaves = (x, *lstm.parameters())
        results.append((output, *torch.autograd.grad((output * weights).sum(), leaves)))
    expected, *remaining = results
    for tensors in remaining:
        torch.testing.assert_close(tensors, expected)


def test_padding_changes_no_output_or_gradient():
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True)
    lengths, x = torch.tensor([4, 9]), torch.randn(2, 9, 3)
    bad = x.clone()
    bad[0, 4:] = torch.nan
    results = []
    for inputs in (x, bad):
        inputs.requires_grad_()
        output = run_bidirectional(lstm, inputs, lengths)
        assert not output[0, 4:].any()
        results.append(torch.autograd.grad(output.square().sum(), lstm.parameters()))
        assert not torch.autograd.grad(run_bidirectional(lstm, inputs, lengths).sum(), inputs)[0][
            0, 4:
        ].any()
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_dropout_is_only_between_layers():
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True, dropout=0.5)
    lengths, x = torch.tensor([4, 9]), torch.randn(2, 9, 3)
    single_layer = torch.nn.LSTM(3, 5, 1, batch_first=True, bidirectional=True, dropout=0.0)
    assert not torch.equal(run_bidirectional(lstm, x, lengths), run_bidirectional(lstm, x, lengths))
    assert torch.equal(
        run_bidirectional(single_layer, x, lengths), run_bidirectional(single_layer, x, lengths)
    )
    torch.testing.assert_close(
        run_bidirectional(lstm.eval(), x, lengths), by_rows(lstm, x, lengths)
    )
