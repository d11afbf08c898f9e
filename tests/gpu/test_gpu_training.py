"""Training steps on a GPU: loss and gradients of the CPU, no synchronisation, constant memory."""

import gc
import warnings
from contextlib import contextmanager

import pytest
import torch

from tests.gpu.steps import CRITERIA, Batches, make
from toolkit.train.config import TrainerConfig
from toolkit.train.cross_entropy import cross_entropy
from toolkit.train.errors import TrainingError
from toolkit.train.trainer import fit

CPU = torch.device("cpu")
STEPS = 50


def step(criterion, device, sentences, out, **config):
    """Loss per weight and gradients of one step."""
    task = make(criterion, device, sentences)
    trainer = task.trainer(out, device, **config)
    stats = trainer.train_step(task.batch.to(device))
    gradients = {name: p.grad.cpu() for name, p in trainer.model.named_parameters()}
    return (stats["loss"] / stats["weight"]).item(), gradients


def distance(gradients, expected):
    """The norm of the difference of two sets of gradients, relative to the expected norm."""
    difference = sum((gradients[name] - expected[name]).square().sum() for name in expected)
    return (difference / sum(x.square().sum() for x in expected.values())).sqrt().item()


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_training_step_equals_the_cpu(criterion, device, sentences, tmp_path):
    loss, gradients = step(criterion, device, sentences, tmp_path / "device")
    expected_loss, expected_gradients = step(criterion, CPU, sentences, tmp_path / "cpu")
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert distance(gradients, expected_gradients) < 1e-4


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_bfloat16_step_nearly_equals_the_cpu(criterion, device, sentences, tmp_path):
    loss, gradients = step(criterion, device, sentences, tmp_path / "device", amp="bf16")
    expected_loss, expected_gradients = step(criterion, CPU, sentences, tmp_path / "cpu")
    assert loss == pytest.approx(expected_loss, rel=0.02, abs=0.02)
    assert distance(gradients, expected_gradients) < 0.2


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "adadelta"])
@pytest.mark.parametrize("first", ["cpu", "device"])
def test_a_training_continues_on_another_device(optimizer, first, device, sentences, tmp_path):
    def train(name, where, steps):
        task, batches = make("chunks", where, sentences), []

        def objective(model, batch):
            batches.append(batch)
            if len(batches) > steps:
                raise KeyboardInterrupt
            return cross_entropy(model, batch)

        config = TrainerConfig(epochs=2, optimizer=optimizer, checkpoint_seconds=0)
        source = Batches([task.batch] * 4)
        fit(task.model, objective, source, config, tmp_path / name, device=where)
        return torch.cat([p.detach().cpu().flatten() for p in task.model.parameters()])

    expected = train("whole", CPU, 100)
    devices = [CPU, device] if first == "cpu" else [device, CPU]
    with pytest.raises(KeyboardInterrupt):
        train("parts", devices[0], 3)
    resumed = train("parts", devices[1], 6)  # of 8 steps; the third may have been lost
    assert (resumed - expected).norm() < 1e-3 * expected.norm()


@contextmanager
def no_waiting():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("amp", ["fp32", "bf16"])
@pytest.mark.parametrize("criterion", [name for name in CRITERIA if not name.startswith("ctc")])
def test_a_step_never_waits_for_the_gpu(criterion, amp, gpu, sentences, tmp_path):
    task = make(criterion, gpu, sentences)
    trainer = task.trainer(tmp_path, gpu, amp=amp)
    pinned = task.batch.pin()
    for _ in range(3):
        trainer.train_step(pinned.to(gpu))
    with no_waiting():
        for _ in range(5):
            trainer.train_step(pinned.to(gpu))


@pytest.mark.parametrize("criterion", ["ctc", "ctc both ways"])
def test_a_ctc_network_never_waits_for_the_gpu(criterion, gpu, sentences):
    """Only the loss waits: torch copies the lengths for it."""
    task = make(criterion, gpu, sentences)
    model, pinned = task.model.to(gpu).train(), task.batch.pin()
    for attempt in range(4):
        batch = pinned.to(gpu)
        if attempt < 3:
            model(batch.inputs, batch.input_lengths)[0].sum().backward()
            continue
        with no_waiting():
            model(batch.inputs, batch.input_lengths)[0].sum().backward()


@pytest.mark.parametrize("criterion", CRITERIA)
def test_memory_does_not_grow(criterion, gpu, sentences, tmp_path):
    task = make(criterion, gpu, sentences)
    trainer = task.trainer(tmp_path, gpu)
    used = []
    for number in range(10 + STEPS):
        stats = trainer.train_step(task.batch.to(gpu))
        torch.cuda.synchronize(gpu)  # a step lets go of the batches of those that are done
        if number >= 9:
            assert stats["loss"].isfinite()
            del stats
            gc.collect()
            used.append((torch.cuda.memory_allocated(gpu), torch.cuda.memory_reserved(gpu)))
    assert used[-1] == used[0]


def test_weights_stay_contiguous_for_cudnn(gpu, sentences, tmp_path):
    task = make("chunks", gpu, sentences)
    trainer = task.trainer(tmp_path, gpu)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*single contiguous chunk.*")
        trainer.train_step(task.batch.to(gpu))
        trainer.model.load_state_dict(trainer.model.state_dict())
        trainer.train_step(task.batch.to(gpu))


def test_the_optimizer_takes_a_step_in_one_kernel(gpu, sentences, tmp_path):
    for optimizer in ("adam", "adamw", "sgd"):
        trainer = make("chunks", gpu, sentences).trainer(tmp_path, gpu, optimizer=optimizer)
        assert trainer.optimizer.param_groups[0]["fused"]


def test_a_non_finite_loss_is_reported_with_its_batch(device, sentences, tmp_path):
    task = make("chunks", device, sentences)
    trainer = task.trainer(tmp_path, device)
    batch = task.batch.to(device)
    trainer.train_step(batch)
    bad = type(batch)(**{**vars(batch), "inputs": batch.inputs * float("nan"), "ids": ["bad"] * 8})
    trainer.train_step(bad)
    with pytest.raises(TrainingError, match=r"not finite .* batch of bad"):
        list(map(trainer.train_step, [batch] * 20))
