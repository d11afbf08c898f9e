import pytest
import torch
from torch import nn

from toolkit.models.tdnnf import EVERY_STEPS, constrain, make_semi_orthogonal


def deviation(weight):
    """||M M^T - a^2 I|| / a^2 with a^2 = tr(M M^T M M^T) / tr(M M^T), and a^2."""
    matrix = weight.flatten(1)
    matrix = matrix if len(matrix) <= matrix.shape[1] else matrix.t()
    product = matrix @ matrix.t()
    scale = float((product @ product).trace() / product.trace())
    identity = torch.eye(len(product), dtype=product.dtype)
    return float((product / scale - identity).norm()), scale


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (12, 15, 2), (1, 5), (12, 12)])
def test_updates_lead_to_a_semi_orthogonal_matrix(shape):
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).double()
    initial_norm = weight.norm()
    for _ in range(100):
        make_semi_orthogonal(weight)
    assert deviation(weight)[0] < 1e-10
    assert 0.5 < float(weight.norm() / initial_norm) < 2


def test_an_update_near_the_solution_squares_the_deviation():
    generator = torch.Generator().manual_seed(0)
    weight = torch.linalg.qr(torch.randn(30, 12, generator=generator).double())[0].t().contiguous()
    weight += 1e-3 * torch.randn(weight.shape, generator=generator).double()
    initial_deviation, _ = deviation(weight)
    make_semi_orthogonal(weight)
    assert 1e-5 < initial_deviation < 0.1
    assert deviation(weight)[0] < 2 * initial_deviation**2


def test_an_update_is_a_step_along_the_gradient():
    # d/dM tr((P - a^2 I)^2) with a^2 held = 4 (P - a^2 I) M
    weight = torch.eye(4, 9).double() + 0.01 * torch.randn(4, 9).double()
    matrix = weight.clone().requires_grad_()
    _, scale = deviation(weight)
    error = matrix @ matrix.t() - scale * torch.eye(4).double()
    (gradient,) = torch.autograd.grad(error.square().sum(), matrix)
    make_semi_orthogonal(weight)
    torch.testing.assert_close(weight, matrix.detach() - 0.125 / scale * gradient)


def test_the_scale_is_left_to_the_optimizer():
    weight = 7 * torch.eye(4, 9).double()
    make_semi_orthogonal(weight)
    torch.testing.assert_close(weight, 7 * torch.eye(4, 9).double())


class Listing(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(9, 4)

    @property
    def semi_orthogonal(self):
        return [self.part.weight]


def test_models_are_constrained_every_fourth_step():
    model = Listing()
    unchanged = []
    for step in range(2 * EVERY_STEPS):
        weight = model.part.weight.detach().clone()
        constrain(model, step)
        unchanged.append(torch.equal(model.part.weight, weight))
    assert unchanged == [False, True, True, True] * 2
    constrain(nn.Linear(3, 2), 0)
