import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open

from toolkit.environment import has_bf16
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.parallel.config import ParallelConfig
from toolkit.parallel.strategy import Strategy
from toolkit.train.batches import ChunkSampler, CorpusBatches, ShardGroups, ValidationBatches
from toolkit.train.config import ChunkConfig, TrainerConfig
from toolkit.train.corpus import Corpus
from toolkit.train.cross_entropy import cross_entropy
from toolkit.train.errors import TrainingDataError, TrainingError
from toolkit.train.monitor import log_epoch
from toolkit.train.trainer import fit

CONFIG = TrainerConfig(epochs=3, initial_rate=1e-2, final_rate=1e-3, checkpoint_seconds=0)
LENGTHS = [90, 40, 70, 100, 30, 60]


class StopAt:
    """Cross entropy, with a fault in its n-th training batch."""

    def __init__(self, n=None, fault=None):
        self.n, self.fault, self.seen = n, fault, 0

    def __call__(self, model, batch):
        loss, stats = cross_entropy(model, batch)
        if model.training:
            self.seen += 1
            if self.seen == self.n:
                loss = self.fault(loss)
        return loss, stats


def interrupt(_):
    raise KeyboardInterrupt


@pytest.fixture
def corpus(make_stores):
    stores = make_stores(LENGTHS)
    return Corpus([(stores.features, stores.alignments)], stores.normaliser, 5)


def chunks_of(corpus, window=10_000):
    sampler = ChunkSampler(ChunkConfig(frames=8, chunks_per_batch=4), 3)
    return CorpusBatches(ShardGroups(corpus, window, 0), sampler, seed=0)


@pytest.fixture
def make_training(corpus, tmp_path):
    """Make a model and its training: a call of `fit`."""

    def make(name, objective=cross_entropy, config=CONFIG, dropout=0.3, window=10_000, **options):
        torch.manual_seed(1)
        model = LstmModel(LstmConfig(12, 5, hidden=8, layers=2, dropout=dropout))
        chunks = chunks_of(corpus, window)
        options.setdefault("valid", ValidationBatches(corpus, 3))
        out = tmp_path / name
        return model, lambda: fit(model, objective, chunks, config, out, **options)

    return make


def num_steps(corpus, epochs=CONFIG.epochs, world_size=1):
    return sum(chunks_of(corpus).num_steps(epoch, world_size) for epoch in range(epochs))


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def without_times(history):
    timed = ("seconds", "frames_per_second", "data_wait")
    return [{k: v for k, v in record.items() if k not in timed} for record in history]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("window", [100, 10_000])
def test_an_interrupted_run_ends_with_the_same_bits(make_training, corpus, optimizer, window):
    config = replace(CONFIG, optimizer=optimizer, average_epochs=2)
    model, train = make_training("whole", config=config, window=window)
    result = train()
    steps = sum(chunks_of(corpus, window).num_steps(epoch) for epoch in range(config.epochs))
    for n in (1, 2, 7, 12):
        name = f"stopped{n}"
        objective = StopAt(n, interrupt)
        _, train = make_training(name, objective, config=config, window=window)
        with pytest.raises(KeyboardInterrupt):
            train()
        objective = StopAt()
        resumed_model, train = make_training(name, objective, config=config, window=window)
        resumed = train()
        assert (resumed.score, resumed.selected) == (result.score, result.selected)
        assert without_times(resumed.history) == without_times(result.history)
        for key, value in weights(model).items():
            assert torch.equal(weights(resumed_model)[key], value), (n, key)
        # at most one step was done again
        assert objective.seen <= steps - (n - 1) + 1


def test_a_finished_run_is_not_repeated(make_training):
    model, train = make_training("run")
    train()
    objective = StopAt(1, interrupt)
    second_model, again = make_training("run", objective)
    again()
    assert torch.equal(weights(model)["output.weight"], weights(second_model)["output.weight"])


def test_dropout_and_order_follow_from_the_seed(make_training):
    ends = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(len(ends))  # whatever came before
        model, train = make_training(name, config=replace(CONFIG, seed=seed, epochs=1))
        train()
        ends.append(weights(model)["output.weight"])
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_nan_loss_names_the_batch_and_saves_it(make_training, corpus, tmp_path, bad):
    _, train = make_training("run", StopAt(5, lambda loss: loss * bad))
    with pytest.raises(TrainingError, match=r"not finite in epoch 1.*utt00\d.*bad_batch") as error:
        train()
    with safe_open(tmp_path / "run/checkpoints/bad_batch.safetensors", framework="pt") as file:
        ids = json.loads(file.metadata()["ids"])
        assert file.get_tensor("inputs").shape == (len(ids), 11, 12)
    for name in ids:
        assert name in str(error.value)
    # the last checkpoint is from before: a run with sound data goes on from step 4
    objective = StopAt()
    model, train = make_training("run", objective)
    train()
    assert objective.seen == num_steps(corpus) - 4
    assert all(torch.isfinite(value).all() for value in weights(model).values())


def test_too_little_memory_on_a_gpu_names_the_batch(make_training):
    def fill(_):
        raise torch.cuda.OutOfMemoryError("tried to allocate 9 GiB")

    _, train = make_training("run", StopAt(2, fill))
    with pytest.raises(TrainingError, match=r"batch of \d+ frames \(of utt00\d.*9 GiB"):
        train()


def test_other_settings_are_refused(make_training):
    _, train = make_training("run")
    train()
    for config in (replace(CONFIG, epochs=4), replace(CONFIG, initial_rate=0.5)):
        with pytest.raises(TrainingError, match=r"epochs|initial_rate"):
            make_training("run", config=config)[1]()
    make_training("run", config=replace(CONFIG, checkpoint_seconds=9))[1]()


def test_the_strategy_acts_at_each_step_and_its_state_is_restored(make_training, corpus):
    class Counting(Strategy):
        def __init__(self):
            self.calls = []
            self.count = torch.zeros(())

        def start(self, model, optimizer):
            super().start(model, optimizer)
            self.calls.append("start")

        def stop(self, failed=False):
            self.calls.append("failed" if failed else "stop")

        def backward(self, loss, weight, accumulated=False):
            super().backward(loss, weight, accumulated)
            assert all(p.grad is not None for p in self.model.parameters())
            self.calls.append("backward")
            self.before = weights(self.model)

        def after_step(self):
            assert not torch.equal(self.before["output.weight"], self.model.output.weight)
            self.calls.append("step")
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

        def rank_state_dict(self):
            return {"count": -self.count}

        def load_state_dict(self, state, rank_states):
            assert [-rank_state["count"] for rank_state in rank_states] == [state["count"]]
            self.count = state["count"]

    strategy = Counting()
    _, train = make_training("run", StopAt(8, interrupt), strategy=strategy)
    with pytest.raises(KeyboardInterrupt):
        train()
    assert strategy.calls == ["start", *["backward", "step"] * 7, "failed"]
    strategy = Counting()
    _, train = make_training("run", strategy=strategy)
    train()
    assert int(strategy.count) == num_steps(corpus)


def test_each_rank_trains_on_its_part(make_training, corpus, tmp_path):
    class Rank(Strategy):
        world_size = 2

        def __init__(self, rank):
            self.rank = rank

    steps_of_rank = []
    for rank in range(2):
        objective = StopAt()
        _, train = make_training(f"rank{rank}", objective, strategy=Rank(rank))
        if rank == 1:  # which reads the weights that rank 0 stored
            shutil.copytree(tmp_path / "rank0/checkpoints", tmp_path / "rank1/checkpoints")
            for path in tmp_path.glob("rank1/checkpoints/epoch-*"):
                path.unlink()
        train()
        steps_of_rank.append(objective.seen)
    steps = [chunks_of(corpus).num_steps(epoch) for epoch in range(CONFIG.epochs)]
    assert steps_of_rank[0] == steps_of_rank[1] == sum(number // 2 for number in steps)
    written = {path.name for path in tmp_path.glob("rank1/*")}
    assert written == {"checkpoints"}

    class TooMany(Strategy):
        world_size = 1000

    with pytest.raises(TrainingDataError, match="1000 processes"):
        make_training("many", strategy=TooMany())[1]()


def test_a_nan_held_out_loss_is_an_error_that_names_its_batch(make_training):
    def nan_held_out_loss(model, batch):
        loss, stats = cross_entropy(model, batch)
        return (loss if model.training else loss * float("nan")), stats

    _, train = make_training("run", nan_held_out_loss)
    with pytest.raises(TrainingError, match=r"not finite in epoch 1, in the batch of utt"):
        train()


def test_fewer_ranks_continue_at_the_same_share_of_an_epoch(corpus, tmp_path):
    """Small windows have a batch for each rank, so more ranks hardly reduce the steps."""

    class Pair(Strategy):
        world_size = 2

    class Rounded:
        """An epoch of ten steps for one rank and of eight for each of two."""

        def __init__(self, chunks):
            self.chunks, self.asked = chunks, []

        def num_steps(self, epoch, world_size=1):
            return {1: 10, 2: 8}[world_size]

        def batches(self, epoch, start=0, rank=0, world_size=1):
            self.asked.append(start)
            batch = next(iter(self.chunks.batches(0)))
            yield from [batch] * (self.num_steps(epoch, world_size) - start)

    def run_training(strategy, objective):
        model, data = LstmModel(LstmConfig(12, 5, hidden=8)), Rounded(chunks_of(corpus))
        fit(model, objective, data, CONFIG, tmp_path / "run", strategy=strategy)
        return data

    with pytest.raises(KeyboardInterrupt):
        run_training(Pair(), StopAt(5, interrupt))
    data = run_training(Strategy(), StopAt())
    assert data.asked[0] == 5  # half of the ten, as four of the eight had been taken


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("linear", 4), ("root", 2)])
def test_learning_rates_can_grow_with_the_number_of_workers(make_training, scaling, factor):
    class OneOfFour(Strategy):
        world_size = 4

    scaled = replace(CONFIG, parallel=ParallelConfig(rate_scaling=scaling))
    _, train = make_training("four", config=scaled, strategy=OneOfFour())
    last = CONFIG.rates()[1]
    assert train().history[-1]["rate"] == pytest.approx(factor * last)
    _, train = make_training("one", config=scaled)
    assert train().history[-1]["rate"] == pytest.approx(last)


def test_gradients_are_clipped_and_the_rate_follows_the_schedule(make_training):
    rates = []

    class Watching(Strategy):
        def after_step(self):
            norm = torch.stack([p.grad.norm() for p in self.model.parameters()]).norm()
            assert norm <= 1e-3 * 1.001
            rates.append(self.optimizer.param_groups[0]["lr"])

    config = replace(CONFIG, max_gradient_norm=1e-3, warmup_steps=2, epochs=2)
    _, train = make_training("run", config=config, strategy=Watching())
    result = train()
    assert rates[:3] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2])
    assert rates[-1] == pytest.approx(1e-3)
    assert result.history[-1]["rate"] == pytest.approx(1e-3)


def test_the_history_has_the_norm_of_gradients_before_clipping(make_training, monkeypatch):
    clip, norms = torch.nn.utils.clip_grad_norm_, []

    def record_norm(*args):
        norms.append(float(clip(*args)))
        return torch.tensor(norms[-1])

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", record_norm)
    config = replace(CONFIG, epochs=1, max_gradient_norm=1e-3)
    _, train = make_training("norms", config=config)
    result = train()
    assert min(norms) > 1e-3
    assert min(norms) <= result.history[0]["gradient_norm"] <= max(norms)


def test_bf16_trains_and_keeps_float32_weights(make_training):
    losses = {}
    for amp in ("fp32", "bf16", "auto"):
        config = replace(CONFIG, amp=amp, epochs=2)
        model, train = make_training(amp, config=config, dropout=0.0)
        result = train()
        losses[amp] = result.history[-1]["loss"]
        assert model.output.weight.dtype == torch.float32
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)
    assert losses["bf16"] != losses["fp32"]
    assert losses["auto"] == losses["bf16" if has_bf16() else "fp32"]


@pytest.mark.skipif(torch.__version__ < "2.3", reason="float16 on a CPU needs torch 2.3")
def test_fp16_scales_the_loss_and_resumes_with_the_same_losses(make_training, monkeypatch):
    """The first factor overflows; the factor is in the checkpoint."""
    monkeypatch.setattr("toolkit.train.precision.INITIAL_SCALE", 2.0**40)
    monkeypatch.setattr("toolkit.train.precision.STEPS_BETWEEN_RISES", 5)
    losses = {}
    for amp in ("fp32", "fp16"):
        config = replace(CONFIG, amp=amp, epochs=6)
        model, train = make_training(amp, config=config, dropout=0.0)
        result = train()
        losses[amp] = result.history[-1]["loss"]
        assert model.output.weight.dtype == torch.float32
    assert losses["fp16"] == pytest.approx(losses["fp32"], rel=0.1)
    whole, history = weights(model), without_times(result.history)
    for n in (1, 7, 12):
        name, options = f"stopped{n}", {"config": config, "dropout": 0.0}
        with pytest.raises(KeyboardInterrupt):
            make_training(name, StopAt(n, interrupt), **options)[1]()
        model, train = make_training(name, **options)
        assert without_times(train().history) == history
        assert all(torch.equal(value, whole[key]) for key, value in weights(model).items())


def test_without_held_out_data_the_last_weights_are_kept(make_training, caplog):
    caplog.set_level("INFO")
    last = {}

    class Watching(Strategy):
        def end_epoch(self):
            last.update(weights(self.model))

    model, train = make_training("run", valid=None, strategy=Watching())
    result = train()
    assert (result.score, result.selected) == (0.0, {})
    assert torch.equal(last["output.weight"], weights(model)["output.weight"])
    assert "kept epoch 3, nothing is held out" in caplog.messages


def test_training_reports_history_progress_and_events(
    make_training, corpus, tmp_path, capfd, caplog
):
    reports = []
    caplog.set_level("INFO")
    _, train = make_training("run", progress=lambda done, total: reports.append((done, total)))
    train()
    history = json.loads((tmp_path / "run/history.json").read_text())
    assert [record["epoch"] for record in history] == [1, 2, 3]
    assert {"loss", "accuracy", "valid_loss", "valid_accuracy", "rate"} <= set(history[0])
    assert history[0]["frames_per_second"] > 0
    assert 0 <= history[0]["data_wait"] < 1
    assert reports[-1] == (num_steps(corpus),) * 2
    assert list((tmp_path / "run/tensorboard").glob("events.out.tfevents.*"))
    assert capfd.readouterr().err == ""  # no bar where there is no terminal
    assert [r.message for r in caplog.records if r.message.startswith("epoch 3/3")]
    assert any(re.fullmatch(r"kept epoch \d, score [\d.]+", m) for m in caplog.messages)


@pytest.mark.parametrize(("waited", "seconds", "warned"), [(0.1, 90, 0), (0.6, 90, 1), (0.6, 3, 0)])
def test_much_waiting_for_data_is_a_warning(caplog, waited, seconds, warned):
    log_epoch(3, {"epoch": 2, "loss": 1.0, "data_wait": waited, "seconds": seconds})
    assert ["60 % of epoch 2" in r.message for r in caplog.records] == [True] * warned


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"optimizer": "adagrad"}, {"amp": "fp8"}, {"final_rate": 0.0}, {"seed": -1}],
)
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainerConfig(**wrong)
