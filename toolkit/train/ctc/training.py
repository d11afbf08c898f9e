"""Training of a CTC model, with the training states of the co-processor paper (A12-A24)."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from toolkit.models.store import make_model, save_model
from toolkit.parallel.strategy import BatchSource, Strategy, make_strategy
from toolkit.processes import ranks
from toolkit.train.checkpoints import finish_training, finished_headline, training_identity
from toolkit.train.config import (
    CtcTrainingConfig,
)
from toolkit.train.ctc.evaluation import HeldOutEvaluation, Recognition
from toolkit.train.ctc.objective import CtcLoss
from toolkit.train.ctc.readers import CtcBatch
from toolkit.train.ctc.states import BackgroundLogging, TrainingStates
from toolkit.train.errors import TrainingDataError
from toolkit.train.monitor import Progress
from toolkit.train.runlog import RUN_LOG, Created, RunLogWriter, read_run_log
from toolkit.train.specaugment import EDGES, MaskedUtterances
from toolkit.train.trainer import fit

logger = logging.getLogger(__name__)


def train_ctc(
    data: BatchSource,
    valid: Iterable[CtcBatch],
    recognition: Recognition,
    config: CtcTrainingConfig,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    strategy: Strategy | None = None,
    batch: int = 0,
    about: dict[str, Any] | None = None,
    background_logging: BackgroundLogging | None = None,
    edges: tuple[float, float] = EDGES,
) -> dict[str, float]:
    """Train a CTC model, or resume an interrupted training in `out`.

    Writes into `out`: the model (`config.json`, `model.safetensors`), `log.jsonl` (see
    `toolkit.train.runlog`), `history.json`, `evaluation/` with the result of each epoch,
    `headline.json` and TensorBoard events. The weights kept are those of the epoch with the lowest
    CER, or the average of the last epochs if that is no worse. Checkpoints are removed at the end.

    Args:
      data: training batches.
      valid: held-out batches, re-iterable; picklable if another process evaluates.
      recognition: output units, decoders and scoring.
      config: sizes, rates, states, seed.
      out: folder of this training alone.
      device: device to train on.
      progress: called from time to time as progress(steps done, total steps).
      strategy: data-parallel method; by default the one of `config.parallel`.
      batch: utterances per step of one process, for the run log; 0 if that varies.
      about: description of the run for the run log, as plain data: its name, machine, settings.
      background_logging: logs events during the training, such as
        `toolkit.tta.utilisation.sampling`.
      edges: lower edge of the first and upper edge of the last mel filter in Hz, for
        `config.specaugment.warp`.

    Returns:
      `cer`, `wer` and `ser` of the kept weights in per cent; `loss` of the last epoch;
      `examples_per_second` and `minutes` from the run log, see `RunLog`; `excluded`, the share of
      the last epoch's examples that were too short for their labels.

    Raises:
      TrainingDataError: there is no held-out data.
      TrainingError: the training failed, or `out` holds another training.
    """
    out = Path(out)
    identity = training_identity(config, units=recognition.units.size)
    headline = finished_headline(out, identity)
    if headline is not None:
        return headline
    strategy = make_strategy(config.parallel, device) if strategy is None else strategy
    first = next(iter(valid), None)
    if first is None:
        raise TrainingDataError(
            "there is no held-out data, which is needed to evaluate the network after each epoch"
        )
    sizes = {"input_dim": first.inputs.shape[2], "output_dim": recognition.units.size}
    log = RunLogWriter(out / RUN_LOG)  # its clock begins here
    torch.manual_seed(config.seed)
    model = make_model(replace(config.model, **sizes))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    logger.info("%.1f M parameters, %d units", parameters / 1e6, recognition.units.size)
    loss = CtcLoss(recognition.units.blank, config.loss_per, config.consistency)
    if config.specaugment.active:
        views = 2 if config.consistency else 1
        data = MaskedUtterances(data, config.specaugment, config.seed, views, edges)
    world_size = strategy.world_size
    states = TrainingStates(
        config.states,
        config.log_every,
        log,
        Created(0.0, parameters, batch * world_size * config.accumulate, world_size, about),
        recognition,
        HeldOutEvaluation(valid, recognition, loss),
        out,
        background_logging,
    )
    result = fit(
        model,
        loss,
        data,
        config,
        out,
        device=device,
        callback=states,
        strategy=strategy,
        identity=identity,
        progress=progress,
    )
    save_model(out, model)
    last = result.history[-1]
    headline = {name: result.selected[name] for name in ("cer", "wer", "ser")}
    headline["loss"] = last["loss"]
    headline["excluded"] = last["excluded"] / (last["excluded"] + last["utterances"])
    headline |= ranks.on_rank_zero(lambda: _times(out))
    return finish_training(out, identity, headline)


def _times(out: Path) -> dict[str, float]:
    """Return `examples_per_second` and `minutes` of a training run, from its log."""
    log = read_run_log(out)
    return {"examples_per_second": log.examples_per_second, "minutes": log.seconds / 60}
