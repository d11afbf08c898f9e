"""The simulator: times against closed forms, weights against plain loops of the same classes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from toolkit.parallel.bmuf import BmufState
from toolkit.parallel.config import BmufConfig, GtcConfig
from toolkit.parallel.ssgd import BUCKET_BYTES
from toolkit.scaling.simulator.methods import simulate
from toolkit.scaling.simulator.run import GIGABIT, Network, NetworkCards, Scenario, StepTimes
from toolkit.scaling.simulator.tasks import FrameTask, SyntheticConfig, synthetic_frames

FREE = Network(per_host=4, between=1e9, inside=1e9, latency=0, latency_inside=0)
PLAIN = Scenario(
    minibatches=240,
    frames=4,
    rate=0.05,
    final_rate=0.01,
    max_rate=10.0,
    times=StepTimes(1.0),
    network=FREE,
    codec=1e18,
    bmuf=BmufConfig(block=5),
    gtc=GtcConfig(threshold=0.5),
)
METHODS = (
    "ssgd",
    "scpsgd",
    "gtc",
    "bmuf",
    "asgd",
    "adpsgd",
    "adpsgd random",
    "adpsgd delayed",
    "hadpsgd",
)


@pytest.fixture(scope="module")
def task():
    config = SyntheticConfig(frames=500, valid_frames=300, classes=5, dimension=4)
    return FrameTask(*synthetic_frames(config), hidden=(6,), seed=1)


def sgd(task, scenario):
    weights = task.initial()
    for number in range(scenario.minibatches):
        rate = scenario.rate_at(number / scenario.minibatches)
        weights = weights - rate * task.gradients(weights[None], [number], scenario.frames)[0]
    return task.evaluate(weights)


@pytest.mark.parametrize("method", ["ssgd", "asgd", "adpsgd", "adpsgd random", "hadpsgd"])
def test_one_worker_is_plain_sgd(task, method):
    outcome = simulate(method, 1, PLAIN, task)
    assert (outcome.loss, outcome.accuracy) == pytest.approx(sgd(task, PLAIN), abs=1e-5)
    assert outcome.seconds == pytest.approx(240)
    assert outcome.speedup == pytest.approx(1)
    assert outcome.sent == 0


@pytest.mark.parametrize("method", METHODS)
def test_without_costs_the_speedup_is_the_number_of_workers(task, method):
    outcome = simulate(method, 8, PLAIN, task, points=4)
    assert outcome.speedup == pytest.approx(8, rel=1e-6)
    assert outcome.minibatches == 240
    assert outcome.computed == pytest.approx(240)
    assert outcome.accuracy > task.evaluate(task.initial())[1]
    assert len(outcome.curve) == 4
    again = simulate(method, 8, PLAIN, task)
    assert again.loss == outcome.loss


@pytest.mark.parametrize("method", METHODS)
def test_times_without_a_task_equal_those_with_one(task, method):
    scenario = replace(PLAIN, times=StepTimes(0.1, (0.8, 1.2)), network=Network(per_host=4))
    scenario = replace(scenario, gtc=GtcConfig(threshold=0.5, dense_fallback=False))
    trained = simulate(method, 8, scenario, task)
    if method == "gtc":
        scenario = replace(scenario, density=trained.density)
    alone = simulate(method, 8, scenario, None)
    unequal = 0.05 if method == "gtc" else 1e-3  # the host with the longest messages counts
    assert alone.seconds == pytest.approx(trained.seconds, rel=unequal)
    assert alone.bytes_per_step == pytest.approx(trained.bytes_per_step, rel=1e-6)


def test_synchronous_training_is_sgd_on_joint_minibatches(task):
    outcome = simulate("ssgd", 4, PLAIN, task)
    joint = replace(PLAIN, minibatches=60, frames=16, rate=0.2, final_rate=0.04)
    assert outcome.loss == pytest.approx(sgd(task, joint)[0], abs=1e-5)


ADAM = replace(PLAIN, optimizer="adam", rate=0.01, final_rate=0.002)


def adam(task, scenario, learners=1):
    """Return models of learners with separate Adam states, averaged after every step."""
    models = [torch.nn.Parameter(task.initial()) for _ in range(learners)]
    optimizers = [torch.optim.Adam([model]) for model in models]
    for first in range(0, scenario.minibatches, learners):
        rate = scenario.rate_at(first / scenario.minibatches, learners)
        for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            gradients = task.gradients(model.data[None], [first + number], scenario.frames)
            model.grad = gradients[0]
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
        mean = torch.stack([model.data for model in models]).mean(dim=0)
        for model in models:
            model.data = mean.clone()
    return task.evaluate(mean)[0]


@pytest.mark.parametrize("method", METHODS)
def test_one_worker_with_adam_is_adam(task, method):
    scenario = replace(ADAM, gtc=GtcConfig(threshold=0.0), bmuf=BmufConfig(momentum=0))
    outcome = simulate(method, 1, scenario, task)
    assert outcome.loss == pytest.approx(adam(task, scenario), abs=1e-4)
    assert outcome.loss != pytest.approx(simulate(method, 1, PLAIN, task).loss, abs=1e-2)


def test_where_gradients_are_averaged_adam_has_one_state(task):
    joint = replace(ADAM, minibatches=60, frames=16, rate=0.04, final_rate=0.008)
    assert simulate("ssgd", 4, ADAM, task).loss == pytest.approx(adam(task, joint), abs=1e-4)
    nodes = simulate("hadpsgd", 4, ADAM, task)  # one node
    assert nodes.loss == pytest.approx(adam(task, joint), abs=1e-4)
    asynchronous = simulate("asgd", 4, ADAM, task)
    assert asynchronous.loss == pytest.approx(adam(task, joint), rel=0.05)


def test_where_models_are_averaged_every_adam_has_its_own_state(task):
    outcome = simulate("scpsgd", 4, ADAM, task)
    assert outcome.loss == pytest.approx(adam(task, ADAM, learners=4), abs=1e-4)
    assert outcome.loss != pytest.approx(simulate("ssgd", 4, ADAM, task).loss, abs=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_many_workers_learn_with_adam_even_if_the_data_end_within_a_step(task, method):
    outcome = simulate(method, 8, replace(ADAM, minibatches=241, rate=0.002), task)
    assert outcome.loss < task.evaluate(task.initial())[0]
    if method.startswith("adpsgd"):
        assert outcome.spread > 0  # all learners' models, not only of those that had data


def test_averaged_states_of_optimizers_are_not_simulated(task):
    scenario = replace(ADAM, bmuf=BmufConfig(block=5, optimizer="average"))
    with pytest.raises(ValueError, match="optimizer` is 'average'"):
        simulate("bmuf", 4, scenario, task)


def test_threshold_zero_is_synchronous_training(task):
    scenario = replace(PLAIN, gtc=GtcConfig(threshold=0.0))
    assert simulate("gtc", 4, scenario, task).loss == pytest.approx(
        simulate("ssgd", 4, scenario, task).loss, abs=1e-5
    )


def test_messages_of_gtc_have_one_header_word_for_any_model(task):
    scenario = replace(PLAIN, gtc=GtcConfig(threshold=1e6))  # nothing is sent
    for size in (4e3, 4e9):
        outcome = simulate("gtc", 8, replace(scenario, model_bytes=size), task)
        assert outcome.bytes_per_step == pytest.approx(4 * 7)
    few = replace(PLAIN, gtc=GtcConfig(threshold=8.0, dense_fallback=False))
    outcome = simulate("gtc", 8, few, task)
    assert outcome.density > 0
    sent = 7 * (4 + outcome.density * few.model_bytes)
    assert outcome.bytes_per_step == pytest.approx(sent, rel=1e-6)


def test_messages_of_gtc_are_never_longer_than_a_bitmap():
    outcome = simulate("gtc", 8, replace(PLAIN, density=0.5), None)
    assert outcome.bytes_per_step == pytest.approx(7 * (4 + PLAIN.model_bytes / 16))


def test_blocks_without_momentum_are_model_averaging(task):
    scenario = replace(PLAIN, bmuf=BmufConfig(block=5, momentum=0.0, rate=1 / 4))
    weights = task.initial()
    for block in range(12):
        models = weights.repeat(4, 1)
        for step in range(5):
            first = 4 * (5 * block + step)
            rate = scenario.rate_at(first / 240)
            models -= rate * task.gradients(models, range(first, first + 4), 4)
        weights = models.mean(dim=0)
    outcome = simulate("bmuf", 4, scenario, task)
    assert outcome.loss == pytest.approx(task.evaluate(weights)[0], abs=1e-5)


@pytest.mark.parametrize("minibatches", [7 * 4 + 2, 7 * 4, 5 * 4 + 3])
def test_blocks_end_with_the_last_whole_step(task, minibatches):
    """7 steps of 4 workers are a block of 5 and one of 2; what is left makes no block."""
    scenario = replace(PLAIN, minibatches=minibatches)
    state, steps, done = BmufState(task.initial(), 4, scenario.bmuf), minibatches // 4, 0
    for _ in range(-(-steps // 5)):
        models = state.broadcast_weights.repeat(4, 1)
        for _ in range(min(5, steps - done)):
            rate = scenario.rate_at(4 * done / minibatches)
            models -= rate * task.gradients(models, range(4 * done, 4 * done + 4), 4)
            done += 1
        state.step(models.mean(dim=0))
    outcome = simulate("bmuf", 4, scenario, task)
    assert outcome.loss == pytest.approx(task.evaluate(state.global_weights)[0], abs=1e-5)
    assert outcome.minibatches == 4 * steps
    assert outcome.spread > 0
    exchanges = -(-steps // 5)
    assert outcome.sent == pytest.approx(exchanges * 2 * 3 * scenario.model_bytes)


SLOW_LINKS = replace(
    PLAIN,
    minibatches=80,
    model_bytes=4 * BUCKET_BYTES,
    network=Network(per_host=4, between=8, inside=80, latency=0, latency_inside=0),
    times=StepTimes(0.3, backward=0.5),
)
INSIDE = 2 * 3 / 4 * 4 * BUCKET_BYTES / 1e10  # seconds of the ring of a host: 0.0157
ACROSS = 2 * 1 / 2 * 4 * BUCKET_BYTES / 1e9  # of the ring of two hosts: 0.1049


@pytest.mark.parametrize("between", [8, 1])
def test_gradients_are_averaged_while_the_backward_pass_goes_on(between):
    scenario = replace(SLOW_LINKS, network=replace(SLOW_LINKS.network, between=between))
    reduction = INSIDE + ACROSS * 8 / between
    at, ready = 0.0, 0.15  # buckets are full at 0.1875, ..., 0.3
    for _ in range(4):
        ready += 0.15 / 4
        at = max(at, ready) + reduction / 4
    assert simulate("ssgd", 8, scenario, None).seconds == pytest.approx(10 * at)
    averaged = simulate("scpsgd", 8, scenario, None)  # models, after the step
    assert averaged.seconds == pytest.approx(10 * (0.3 + reduction))
    assert averaged.sent == pytest.approx(10 * 2 * 7 * scenario.model_bytes)


def test_a_node_averages_gradients_in_the_backward_pass_and_passes_the_model_on():
    passing_on = 4 * BUCKET_BYTES / 1e10
    step = 0.3 + INSIDE / 4 + passing_on
    last = INSIDE + ACROSS  # the mean of all models, at the end
    outcome = simulate("hadpsgd", 8, SLOW_LINKS, None)
    assert outcome.seconds == pytest.approx(10 * step + last)
    inside = 2 * 10 * (2 + 1) * 3 * SLOW_LINKS.model_bytes
    assert outcome.sent - outcome.between == pytest.approx(inside)
    alone = simulate("hadpsgd", 4, SLOW_LINKS, None)  # one node is S-SGD
    assert alone.seconds == pytest.approx(20 * (0.3 + INSIDE / 4) + INSIDE)


def test_workers_of_asgd_continue_from_the_weights_sent_to_them(task):
    """Worker 1's messages take 1.2 s each way; worker 0 makes an update in the meantime."""
    network = Network(per_host=1, between=1e9, latency=1.2)
    scenario = replace(PLAIN, minibatches=6, final_rate=PLAIN.rate, network=network)

    def apply_gradients(weights, *parts):
        gradients = [task.gradients(w[None], [number], 4)[0] for w, number in parts]
        return weights - 2 * PLAIN.rate * sum(gradients) / 2

    first = task.initial()
    second = apply_gradients(first, (first, 0), (first, 2))  # at 2 s, both of worker 0
    # At 3 s; the reply to worker 1 left at 2.2 s.
    third = apply_gradients(second, (first, 1), (second, 4))
    last = apply_gradients(third, (third, 5), (second, 3))  # worker 0 has taken 5 over
    outcome = simulate("asgd", 2, scenario, task)
    assert outcome.loss == pytest.approx(task.evaluate(last)[0], abs=1e-6)


def test_nodes_need_the_same_number_of_workers():
    with pytest.raises(ValueError, match="6 workers cannot be divided into nodes of 4"):
        simulate("hadpsgd", 6, PLAIN, None)


@pytest.mark.parametrize("method", ["adpsgd", "asgd", "hadpsgd"])
def test_a_fast_worker_takes_over_minibatches_of_a_slow_one(method):
    """All end within one step of the slowest, as when real steps are shared."""
    network = replace(FREE, per_host=2)
    scenario = replace(PLAIN, minibatches=400, times=StepTimes(1.0, slow={3: 5.0}), network=network)
    outcome = simulate(method, 4, scenario, None)
    speed = 2 + 2 / 5 if method == "hadpsgd" else 3 + 1 / 5
    assert 400 / speed <= outcome.seconds <= 400 / speed + 5
    assert outcome.minibatches == 400


def test_fewer_minibatches_than_workers_are_refused():
    with pytest.raises(ValueError, match="3 minibatches are too few for 4"):
        simulate("bmuf", 4, replace(PLAIN, minibatches=3), None)


def test_a_slow_worker_slows_synchronous_methods_most():
    speed_ratios = {}
    for method in METHODS:
        times = StepTimes(1.0, slow={7: 10.0})
        scenario = replace(PLAIN, minibatches=1600, times=times)
        speed_ratios[method] = simulate(method, 8, scenario, None).speedup / 8
    for method in ("ssgd", "gtc", "bmuf", "adpsgd delayed"):
        assert speed_ratios[method] == pytest.approx(0.1, rel=1e-3)
    for method in ("adpsgd", "adpsgd random", "asgd"):
        assert speed_ratios[method] == pytest.approx((7 + 0.1) / 8, abs=0.05)
    assert speed_ratios["hadpsgd"] == pytest.approx((4 + 0.4) / 8, abs=0.05)


def test_an_all_reduce_takes_the_time_of_its_rings():
    network = Network(per_host=4, between=10, inside=100, latency=1e-3, latency_inside=1e-4)
    size = 1e6
    inside = 6 * (size / 4 / (100 * GIGABIT) + 1e-4)
    assert network.all_reduce(4, size) == pytest.approx(inside)
    across = 2 * (size / 2 / (10 * GIGABIT) + 1e-3)
    assert network.all_reduce(8, size) == pytest.approx(inside + across)
    assert network.all_reduce(1, size) == 0
    core = replace(network, core=1.0)
    assert core.all_reduce(8, size) == pytest.approx(inside + 2 * size / GIGABIT)


def test_all_with_all_loads_cards_by_hosts_and_a_core_by_their_square():
    network = Network(per_host=4, between=10, inside=1e9, latency=0, latency_inside=0)
    sizes = [1e6] * 16
    assert network.bytes_between(sizes) == 16 * 12 * 1e6
    assert network.all_to_all(sizes) == pytest.approx(4 * 12 * 1e6 / (10 * GIGABIT))
    core = replace(network, core=10.0)
    assert core.all_to_all(sizes) == pytest.approx(16 * 12 * 1e6 / (10 * GIGABIT))
    assert core.all_to_all(sizes[:8]) == pytest.approx(8 * 4 * 1e6 / (10 * GIGABIT))
    unequal = [3e6, 0, 0, 0, 0, 0, 0, 0]  # one host sends to four workers elsewhere
    assert network.all_to_all(unequal) == pytest.approx(4 * 3e6 / (10 * GIGABIT))


def test_a_host_passes_a_model_on_in_a_chain():
    network = Network(per_host=4, inside=100, latency_inside=1e-4)
    assert network.broadcast(4, 1e6) == pytest.approx(1e6 / (100 * GIGABIT) + 3e-4)
    assert network.broadcast(1, 1e6) == 0


def test_messages_queue_at_a_card_but_not_inside_a_host():
    network = Network(per_host=2, between=8, inside=80, latency=0.5, latency_inside=0.25)
    cards = NetworkCards(network)
    assert cards.send(0.0, 0, 2, 1e9) == pytest.approx(1.5)
    assert cards.send(0.0, 1, 3, 1e9) == pytest.approx(2.5)  # after the first
    assert cards.send(0.0, 2, 0, 1e9) == pytest.approx(1.5)  # the other way is free
    assert cards.send(0.0, 0, 1, 1e9) == pytest.approx(0.35)
    assert cards.carried == 3e9


def test_the_spread_of_workers_is_that_of_normal_draws():
    rng = np.random.default_rng(0)
    for workers, slowest in ((8, 1.4236), (64, 2.3506), (128, 2.6)):  # of a normal distribution
        means = StepTimes(2.0, spread=0.1).means(rng, workers)
        assert means.mean() == pytest.approx(2.0)
        assert means.max() == pytest.approx(2 * (1 + 0.1 * slowest), rel=0.01)
    assert StepTimes(2.0, spread=0.1).means(rng, 1).tolist() == [2.0]


def test_learning_rates_decay_climb_and_are_bounded():
    scenario = replace(PLAIN, max_rate=0.3, warmup=0.5)
    assert scenario.rate_at(1.0) == pytest.approx(0.01)
    assert scenario.rate_at(1.0, 4) == pytest.approx(0.04)
    assert scenario.rate_at(1.0, 100) == pytest.approx(0.3 / 5)
    assert scenario.rate_at(0.25) == pytest.approx(0.05 * 5**-0.25 * (0.5 + 1 / 120))


@pytest.mark.parametrize("values", [{"between": 0}, {"latency": -1}, {"core": -1}])
def test_networks_are_checked(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        Network(**values)


def test_step_times_are_checked():
    with pytest.raises(ValueError, match="above 0"):
        StepTimes(0.0)


def test_the_backward_pass_is_a_share():
    with pytest.raises(ValueError, match="backward"):
        StepTimes(backward=1.5)


def test_averagings_are_counted():
    """Learners on a fixed ring meet once per step, or less often when messages take longer."""
    scenario = replace(PLAIN, minibatches=640)
    assert simulate("adpsgd", 8, scenario, None).averagings == pytest.approx(640, rel=0.05)
    assert simulate("hadpsgd", 8, scenario, None).averagings == pytest.approx(160, rel=0.05)
    assert simulate("ssgd", 8, scenario, None).averagings == 0
    slow = replace(scenario, network=Network(per_host=1, between=0.5, latency=0))
    met = simulate("adpsgd", 8, slow, None)  # messages take 1.6 s there and back again, steps 1 s
    assert met.averagings == pytest.approx(640 / 3.1, rel=0.1)


def test_learners_of_adpsgd_stay_together(task):
    outcome = simulate("adpsgd", 4, PLAIN, task)
    assert 0 < outcome.spread < 0.5
