import torch

from toolkit.parallel.strategy import SingleProcess


def test_one_process_has_all_the_data_and_changes_nothing():
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [(p.detach().clone(), p.grad.clone()) for p in model.parameters()]
    strategy = SingleProcess()
    strategy.after_backward(model)
    strategy.after_step(model, optimizer)
    strategy.load_state(strategy.state())
    assert strategy.part() == (0, 1)
    for parameter, (value, gradient) in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert torch.equal(parameter.grad, gradient)
