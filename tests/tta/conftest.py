"""Fake trainings, whose run logs have planted curves and a fake clock."""

import math

import numpy as np
import pytest

from toolkit.train.runlog import (
    RUN_LOG,
    Created,
    Evaluated,
    Finished,
    RunLogWriter,
    Saved,
    Sentences,
    Step,
    Swapped,
    Utilisation,
)


class FakeTraining:
    """Writes the log of a fake training with known times.

    Args:
      folder: where the log goes.
      cer: of each epoch, in percent; WER is twice as high.
      steps: iterations of an epoch, each an entry of the log.
      batch: utterances of an iteration.
      step: seconds of an iteration.
      evaluation: seconds of an evaluation; each swap takes 1 s, sentences 0.5 s at the middle of an
        epoch, a checkpoint 0.25 s at its end.
      devices: accelerators that utilisation is sampled of, in bursts; none without.
      about: of `Created`.
    """

    def __init__(
        self, folder, cer, steps=10, batch=8, step=2.0, evaluation=4.0, devices=0, about=None
    ):
        self.now = 0.0
        self.folder = folder
        self._writer = RunLogWriter(folder / RUN_LOG, clock=lambda: self.now)
        self._batch, self._step_seconds, self._devices = batch, step, devices
        self._random = np.random.default_rng(7)
        self._sampled = 0.0
        created = Created(parameters=1_234_567, batch=batch, devices=max(1, devices), about=about)
        self._writer.create(created)
        self._pass(3.0)  # start-up
        done = 0
        for epoch, rate in enumerate(cer, 1):
            for number in range(steps):
                done += 1
                self._pass(step, training=True)
                loss = 200 * math.exp(-done / 40) + 10 + self._random.normal()
                self._writer.write(
                    Step(step=done, epoch=epoch, loss=loss, examples=batch, seconds_in_step=step)
                )
                if number == steps // 2:
                    self._pass(0.5)
                    self._writer.write(Sentences(step=done, epoch=epoch, duration=0.5))
            self._pass(0.25)
            self._writer.write(Saved(step=done, epoch=epoch, duration=0.25))
            self._evaluate(epoch, done, rate, evaluation)
        self._writer.write(Finished(step=done, epochs=len(cer)))

    def _evaluate(self, epoch, step, rate, seconds):
        ready = self.now
        self._pass(1.0)
        self._writer.write(Swapped(step=step, epoch=epoch, to="evaluation", duration=1.0))
        self._pass(seconds)
        self._pass(1.0)
        self._writer.write(Swapped(step=step, epoch=epoch, to="training", duration=1.0))
        self._writer.write(
            Evaluated(
                step=step,
                epoch=epoch,
                wer=2 * rate,
                cer=rate,
                cer_usual=1.5 * rate,
                ser=min(100.0, 3 * rate),
                loss=3 * rate,
                duration=seconds,
                waited=seconds,
                trained=ready,
            )
        )

    def _pass(self, seconds, training=False):
        """Advance the clock; devices work in the middle of each step."""
        end = self.now + seconds
        while self._sampled + 0.1 <= end:
            self._sampled += 0.1
            if self._sampled % 300 > 30:  # samples come in bursts
                continue
            phase = (self._sampled - (end - seconds)) / seconds
            works = training and 0.25 < phase < 0.8
            cpu = 0.35 if works or not training else 0.95 if phase <= 0.25 else 0.55
            noise = self._random.uniform(-0.04, 0.04, size=2 + self._devices)
            self.now = self._sampled
            gpus = tuple(float(np.clip((0.95 if works else 0.04) + n, 0, 1)) for n in noise[2:])
            cores = tuple(float(np.clip(cpu + n, 0, 1)) for n in noise[:2])
            process = 0.9 * sum(cores) / 2
            self._writer.write(Utilisation(cpu=cores, gpus=gpus, process=process))
        self.now = end


@pytest.fixture
def training(tmp_path):
    """Make a fake training in a folder of this name."""

    def make(name, cer=(40, 20, 12, 9, 8), **options):
        folder = tmp_path / name
        FakeTraining(folder, cer, **options)
        return folder

    return make
