import pytest
import torch
from safetensors import safe_open
from torch.nn import functional

from toolkit.ssl.scheduled import student_loss
from toolkit.ssl.targets import k_best
from toolkit.train.batches import Batch
from toolkit.train.cross_entropy import KBestBatch, cross_entropy, distillation, distillation_losses

FRAMES, SENONES = 24, 30


def random(*shape, seed=0, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale


def store_k_best(teacher, k):
    best = k_best(teacher, k)
    senones = torch.from_numpy(best.ids.astype("int64"))
    return best, senones, torch.from_numpy(best.logits).double()


@pytest.mark.parametrize("k", [1, 4, SENONES])
def test_against_the_cross_entropy_of_rebuilt_posteriors_in_float64(k):
    teacher, student = random(FRAMES, SENONES), random(FRAMES, SENONES, seed=1)
    best, senones, logits = store_k_best(teacher, k)
    rebuilt = best.rebuild(SENONES).double().softmax(dim=-1)
    losses, least = distillation_losses(student, senones, logits)
    expected = functional.cross_entropy(student, rebuilt, reduction="none")
    torch.testing.assert_close(losses, expected, rtol=1e-7, atol=1e-7)
    entropy = torch.distributions.Categorical(rebuilt).entropy()
    torch.testing.assert_close(least, entropy, rtol=1e-6, atol=1e-6)
    divergence = functional.kl_div(student.log_softmax(-1), rebuilt, reduction="none").sum(-1)
    torch.testing.assert_close(losses - least, divergence, rtol=1e-6, atol=1e-6)


def test_all_senones_are_the_teachers_full_posteriors():
    teacher, student = random(FRAMES, SENONES), random(FRAMES, SENONES, seed=1)
    every = torch.arange(SENONES).expand(FRAMES, SENONES)
    losses, least = distillation_losses(student, every, teacher)
    full = teacher.softmax(dim=-1)
    expected = functional.cross_entropy(student, full, reduction="none")
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    # what is lost by storing them all as 16 bits
    torch.testing.assert_close(
        distillation_losses(student, *store_k_best(teacher, SENONES)[1:])[0],
        losses,
        rtol=2e-3,
        atol=0,
    )
    assert bool((losses > least).all())
    same, least = distillation_losses(teacher + 5, every, teacher)
    torch.testing.assert_close(same, least, rtol=1e-12, atol=1e-12)


def test_gradients_against_finite_differences():
    student = random(4, 9, seed=1).requires_grad_()
    _, senones, logits = store_k_best(random(4, 9), 3)
    assert torch.autograd.gradcheck(lambda y: distillation_losses(y, senones, logits)[0], student)
    distillation_losses(student, senones, logits)[0].sum().backward()
    target = torch.zeros(4, 9, dtype=torch.float64).scatter(1, senones, logits.softmax(-1))
    torch.testing.assert_close(student.grad, student.detach().softmax(-1) - target)


def batch_of(k, rows=3, frames=5):
    teacher = random(rows * frames, SENONES)
    _, senones, logits = store_k_best(teacher, k)
    weights = torch.ones(rows, frames)
    weights[1, 3:] = 0
    return KBestBatch(
        ids=[f"u{row}" for row in range(rows)],
        inputs=random(rows, frames, 4, seed=2).float(),
        targets=senones[:, 0].view(rows, frames),
        weights=weights,
        lengths=torch.tensor([5, 3, 5]),
        frames=13,
        senones=senones.view(rows, frames, k),
        logits=logits.float().view(rows, frames, k),
    )


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.output = torch.nn.Linear(4, SENONES)

    def forward(self, inputs, lengths=None):
        return self.output(inputs), None


def test_the_objective_sums_over_scored_frames():
    model, batch = Linear(), batch_of(6)
    loss, stats = distillation(model, batch)
    outputs = model(batch.inputs)[0].double()
    expected = agreeing = divergence = 0.0
    for row in range(3):
        for frame in range(5):
            if batch.weights[row, frame]:
                p = batch.logits[row, frame].double().softmax(-1)
                q = outputs[row, frame].log_softmax(-1)[batch.senones[row, frame]]
                expected -= float((p * q).sum())
                divergence += float((p * (p.log() - q)).sum())
                best = int(outputs[row, frame].argmax())
                agreeing += best == int(batch.senones[row, frame, 0])
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(stats["divergence"]) == pytest.approx(divergence, rel=1e-4)
    assert (int(stats["agreement"]), int(stats["weight"])) == (agreeing, 13)
    assert loss.requires_grad
    assert not any(value.requires_grad for value in stats.values())


def test_one_best_senone_is_the_cross_entropy_of_hard_targets():
    model, batch = Linear(), batch_of(1)
    soft, soft_stats = distillation(model, batch)
    hard, hard_stats = cross_entropy(model, batch)
    assert float(soft) == pytest.approx(float(hard), rel=1e-6)
    assert float(soft_stats["agreement"]) == float(hard_stats["accuracy"])


def test_batches_of_both_kinds_have_their_loss():
    model, soft = Linear(), batch_of(2)
    names = ("ids", "inputs", "targets", "weights", "lengths", "frames")
    hard = Batch(**{name: getattr(soft, name) for name in names})
    objective = student_loss
    assert "agreement" in objective(model, soft)[1]
    assert "accuracy" in objective(model, hard)[1]
    assert float(objective(model, hard)[0]) == float(cross_entropy(model, hard)[0])


def test_a_batch_is_moved_and_saved_whole(tmp_path):
    batch = batch_of(2)
    moved = batch.to(torch.device("meta"))
    assert type(moved) is KBestBatch
    assert moved.senones.is_meta
    assert moved.logits.is_meta
    assert not moved.lengths.is_meta
    batch.save(tmp_path / "batch.safetensors")
    with safe_open(tmp_path / "batch.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("senones"), batch.senones)
        assert torch.equal(file.get_tensor("logits"), batch.logits)


class Clusters:
    """Points around the centres of 60 classes, which overlap."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)
        self.centres = 1.5 * torch.randn(60, 8, generator=self.generator)

    def draw(self, number=512):
        classes = torch.randint(60, (number,), generator=self.generator)
        noise = torch.randn(number, 8, generator=self.generator)
        return self.centres[classes] + noise, classes


def trained(loss, seed, steps=150):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 60))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    data = Clusters()
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, *data.draw()).backward()
        optimizer.step()
    return model


def test_twenty_logits_of_a_trained_teacher_teach_as_well_as_all():
    teacher = trained(lambda model, x, classes: functional.cross_entropy(model(x), classes), seed=0)

    def loss(k):
        def mean(student, x, _):
            with torch.no_grad():
                _, senones, logits = store_k_best(teacher(x), k)
            return distillation_losses(student(x), senones, logits.float())[0].mean()

        return mean

    x, _ = Clusters().draw(4000)
    students = {k: trained(loss(k), seed=1) for k in (1, 20, 60)}
    with torch.no_grad():
        # of one student, measured with k logits
        measured = {k: float(loss(k)(students[60], x, None)) for k in students}
        # of students that learnt from k logits, measured with all
        learnt = {k: float(loss(60)(student, x, None)) for k, student in students.items()}
    assert measured[20] == pytest.approx(measured[60], rel=0.01)
    assert learnt[20] == pytest.approx(learnt[60], rel=0.01)
    assert abs(measured[1] - measured[60]) > 0.1 * measured[60]  # where k matters
