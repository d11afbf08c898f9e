import torch

from toolkit.train.batches import Batch
from toolkit.train.cross_entropy import cross_entropy


class Given(torch.nn.Module):
    """A model whose logits are its inputs."""

    def forward(self, inputs, lengths):
        return inputs, None


def test_loss_statistics_and_gradient_against_a_loop_in_float64():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, generator=generator).requires_grad_()
    targets = torch.randint(4, (2, 3), generator=generator)
    targets[0, 0] = logits[0, 0].argmax()
    weights = torch.tensor([[1.0, 1.0, 0.0], [0.5, 1.0, 0.0]])
    batch = Batch(["a", "b"], logits, targets, weights, torch.tensor([2, 2]), 4)
    loss, stats = cross_entropy(Given(), batch)
    expected, correct = 0.0, 0.0
    reference = logits.detach().double().requires_grad_()
    for n in range(2):
        for t in range(3):
            x = reference[n, t]
            expected = expected - weights[n, t] * (x[targets[n, t]] - x.exp().sum().log())
            correct += float(weights[n, t]) * (int(x.argmax()) == int(targets[n, t]))
    expected.backward()
    loss.backward()
    torch.testing.assert_close(loss.double(), expected.detach())
    torch.testing.assert_close(logits.grad.double(), reference.grad, atol=1e-6, rtol=1e-5)
    assert float(stats["weight"]) == 3.5
    assert float(stats["accuracy"]) == correct >= 1
    assert not logits.grad[:, 2].any()  # nothing comes from frames of weight 0
