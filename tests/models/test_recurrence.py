import pytest
import torch
from torch import nn

from toolkit.models import lstm_cpu
from toolkit.models.config import BlstmConfig, CtcConfig, LstmConfig, WordLstmConfig
from toolkit.models.ctc import CtcModel
from toolkit.models.lstm import BlstmModel, LstmModel, WordLstm
from toolkit.models.lstm_cpu import is_faster_than_torch, run_lstm
from toolkit.processes.devices import one_thread

OLD = torch.__version__ < "2"
NO_BFLOAT16 = not lstm_cpu.onednn_has_bfloat16()


def make(bidirectional=False, layers=3, dropout=0.0, dtype=torch.float64):
    torch.manual_seed(0)
    lstm = nn.LSTM(5, 6, layers, True, True, dropout, bidirectional).to(dtype)
    x = torch.randn(4, 9, 5, dtype=dtype).requires_grad_()
    shape = (layers * (1 + bidirectional), 4, 6)
    state = tuple(torch.randn(shape, dtype=dtype).requires_grad_() for _ in range(2))
    return lstm, x, state


def weighted_sum(outputs, state):
    generator = torch.Generator().manual_seed(1)
    return sum(
        (x * torch.randn(x.shape, generator=generator, dtype=x.dtype)).sum()
        for x in (outputs, *state)
    )


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("frames", [1, 9])
def test_outputs_and_gradients_equal_torchs(bidirectional, with_state, frames):
    lstm, x, state = make(bidirectional)
    x = x[:, :frames].detach().requires_grad_()
    initial_state = state if with_state else None
    leaves = [x, *lstm.parameters(), *(state if with_state else ())]
    results = []
    for compute in (lstm, lambda *args: run_lstm(lstm, *args)):
        outputs, last = compute(x, initial_state)
        gradients = torch.autograd.grad(weighted_sum(outputs, last), leaves)
        results.append([outputs, *last, *gradients])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_gradient_against_finite_differences():
    lstm, x, state = make(layers=1)
    assert torch.autograd.gradcheck(lambda *a: run_lstm(lstm, a[0], a[1:])[0], (x, *state))


def test_dropout_is_between_layers_and_in_training_only():
    lstm, x, _ = make(dropout=0.5)
    torch.manual_seed(3)
    expected, _ = lstm(x)
    torch.manual_seed(3)
    outputs, _ = run_lstm(lstm, x)
    torch.testing.assert_close(outputs, expected)
    assert not torch.allclose(run_lstm(lstm, x)[0], outputs)
    lstm.eval()
    torch.testing.assert_close(run_lstm(lstm, x)[0], lstm(x)[0])


def test_rows_of_different_lengths_are_reversed_at_their_own_ends():
    lstm, x, _ = make(bidirectional=True)
    lengths = torch.tensor([9, 4, 1, 6])
    outputs, _ = run_lstm(lstm, x, lengths=lengths)
    for row, length in enumerate(lengths):
        expected, _ = lstm(x[row : row + 1, :length])
        torch.testing.assert_close(outputs[row, :length], expected[0])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_bfloat16_rounds_only_the_factors_of_products(bidirectional):
    lstm, x, _ = make(bidirectional, dtype=torch.float32)
    parameters = list(lstm.parameters())
    exact, last = run_lstm(lstm, x)
    expected = torch.autograd.grad(weighted_sum(exact, last), parameters)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, last = run_lstm(lstm, x)
    gradients = torch.autograd.grad(weighted_sum(outputs, last), parameters)
    assert outputs.dtype == torch.float32
    assert 0 < (outputs - exact).abs().max() < 0.02
    for a, b in zip(gradients, expected, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.03 * b.norm()


NETWORKS = {
    "lstm": lambda: (LstmModel(LstmConfig(12, 5, hidden=8, layers=2)), torch.randn(3, 9, 12)),
    "blstm": lambda: (BlstmModel(BlstmConfig(12, 5, hidden=8, layers=2)), torch.randn(3, 9, 12)),
    "ctc": lambda: (CtcModel(CtcConfig(6, 4, hidden=8, lstm_layers=2)), torch.randn(3, 60, 6)),
    "words": lambda: (
        WordLstm(WordLstmConfig(vocabulary=7, hidden=8)),
        torch.randint(7, (3, 9)),
    ),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_bfloat16_works_where_torch_has_no_bfloat16_lstm(network, monkeypatch):
    """Processors without AVX-512 have no such LSTM."""
    monkeypatch.setattr(lstm_cpu, "onednn_has_bfloat16", lambda: False)
    torch.manual_seed(0)
    model, x = NETWORKS[network]()
    model.eval()
    lstm = next(m for m in model.modules() if isinstance(m, nn.LSTM))
    assert not is_faster_than_torch(lstm, x) or torch.__version__ < "2"
    expected = model(x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert is_faster_than_torch(lstm, x)
        outputs = model(x)[0]
        outputs.float().sum().backward()
    torch.testing.assert_close(outputs.float(), expected, rtol=0.05, atol=0.05)
    assert not torch.equal(outputs.float(), expected)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    if hasattr(torch, "get_autocast_dtype"):  # older versions have no autocast to float16 on a CPU
        with torch.autocast("cpu", torch.float16):
            assert not is_faster_than_torch(lstm, x)


def test_large_networks_are_faster_in_bfloat16_with_few_threads():
    large, small = (nn.LSTM(5, size, batch_first=True) for size in (512, 511))
    x = torch.randn(2, 3, 5)
    num_threads = torch.get_num_threads()
    try:
        for threads, expected in ((4, True), (5, False)):
            torch.set_num_threads(threads)
            with torch.autocast("cpu", torch.bfloat16):
                assert is_faster_than_torch(large, x) == (expected or OLD or NO_BFLOAT16)
                assert is_faster_than_torch(small, x) == (OLD or NO_BFLOAT16)
                with torch.no_grad():  # torch's forward pass is faster
                    assert is_faster_than_torch(large, x) == NO_BFLOAT16
            assert is_faster_than_torch(large, x) == OLD
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.parametrize("with_state", [False, True])
def test_a_large_network_in_bfloat16_has_the_gradients_of_float32(with_state):
    torch.manual_seed(0)
    model = LstmModel(LstmConfig(12, 5, hidden=512, layers=2))
    x = torch.randn(6, 9, 12)
    state = tuple(torch.randn(2, 6, 512).mul_(0.3).requires_grad_() for _ in range(2))
    leaves = [*model.parameters(), *(state if with_state else ())]
    weights = torch.randn(6, 9 if with_state else 6, 5)
    gradients = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled), one_thread():
            assert is_faster_than_torch(model.lstm, x) == (enabled or OLD)
            logits, last = model(x, state if with_state else None)
        total = (logits.float() * weights).sum() + last[0].sum() - last[1].square().sum()
        gradients.append(torch.autograd.grad(total, leaves))
    # Older versions add up products in bfloat16 where the processor has no instructions for it.
    largest_error = 0.06 if OLD else 0.015
    for exact, rounded in zip(*gradients, strict=True):
        assert rounded.dtype == torch.float32
        assert (rounded - exact).norm() < largest_error * exact.norm()


def test_the_gradient_of_the_bias_is_exact_for_many_rows():
    torch.manual_seed(0)
    lstm, x = nn.LSTM(3, 4, batch_first=True), torch.rand(20_000, 1, 3)
    exact = nn.LSTM(3, 4, batch_first=True).double()
    exact.load_state_dict(lstm.state_dict())
    run_lstm(lstm, x)[0].sum().backward()
    exact(x.double())[0].sum().backward()
    torch.testing.assert_close(
        lstm.bias_ih_l0.grad.double(), exact.bias_ih_l0.grad, rtol=1e-6, atol=1e-3
    )


def test_gradients_can_be_computed_twice_but_not_differentiated():
    lstm, x, _ = make(layers=1)
    total = run_lstm(lstm, x)[0].square().sum()
    first = torch.autograd.grad(total, lstm.weight_hh_l0, retain_graph=True)[0].clone()
    assert torch.equal(torch.autograd.grad(total, lstm.weight_hh_l0, retain_graph=True)[0], first)
    [gradient] = torch.autograd.grad(total, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_frozen_inputs_and_weights_need_no_gradient():
    lstm, x, _ = make(layers=1)
    lstm.weight_ih_l0.requires_grad_(False)
    run_lstm(lstm, x.detach())[0].sum().backward()
    assert lstm.weight_ih_l0.grad is None
    assert lstm.weight_hh_l0.grad.abs().sum() > 0


def test_bfloat16_weights_are_not_supported():
    lstm, x = nn.LSTM(5, 512, batch_first=True).bfloat16(), torch.randn(2, 3, 5)
    with torch.autocast("cpu", torch.bfloat16), one_thread():
        assert not is_faster_than_torch(lstm, x)
    with pytest.raises(TypeError, match=r"torch\.bfloat16, not float32 or float64"):
        run_lstm(lstm, x.bfloat16())
