import math
from datetime import timedelta

import pytest
import torch

from toolkit.parallel.config import LONGEST, ParallelConfig
from toolkit.parallel.strategy import Strategy


def test_one_process_has_all_the_data_and_trains_as_if_there_were_no_strategy():
    model = torch.nn.Linear(2, 2)
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    (model(x).square().sum() / 2).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    values = [parameter.detach().clone() for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    strategy = Strategy()
    strategy.start(model, optimizer)
    strategy.backward(model(x).square().sum(), torch.tensor(2.0))
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)
    strategy.after_step()
    strategy.end_epoch()
    with strategy.consensus():
        pass
    strategy.load_state_dict(strategy.state_dict(), [strategy.rank_state_dict()])
    for parameter, value in zip(model.parameters(), values, strict=True):
        assert torch.equal(parameter, value)
    assert (strategy.rank, strategy.world_size) == (0, 1)
    assert [strategy.agree_on_checkpoint(due) for due in (True, False)] == [True, False]
    assert strategy.sum_over_ranks({"loss": torch.tensor(3.0)}) == {"loss": torch.tensor(3.0)}


def test_gradients_of_earlier_batches_count_by_the_weight_of_all():
    model, strategy = torch.nn.Linear(2, 1), Strategy()
    strategy.start(model, torch.optim.SGD(model.parameters(), lr=1.0))
    rows = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 4.0]])
    (model(rows).square().sum() / 3).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    model(rows[:2]).square().sum().backward()
    strategy.backward(model(rows[2:]).square().sum(), torch.tensor(3.0), accumulated=True)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.nan, math.inf, 1e20])
def test_a_timeout_that_torch_cannot_count_is_refused(timeout):
    with pytest.raises(ValueError, match="`timeout` is"):
        ParallelConfig(timeout=timeout)
    assert timedelta(seconds=ParallelConfig(timeout=LONGEST).timeout).days > 10000
