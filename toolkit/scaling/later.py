"""Methods that came after the papers', simulated with many workers: accuracy and efficiency."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from toolkit.parallel.config import BmufConfig, GtcConfig
from toolkit.scaling.simulator import candidates, synchronous
from toolkit.scaling.simulator.network import Network
from toolkit.scaling.simulator.run import Outcome, Run, Scenario, StepTimes
from toolkit.scaling.simulator.simulate import simulate
from toolkit.scaling.simulator.task import Task
from toolkit.scaling.studies import Report

FEWER = 10.0
"""Momentum 0.9 makes steps ten times as long; rates are as many times lower, tau as many higher."""


@dataclass(frozen=True)
class Later:
    """Settings of the study."""

    workers: int = 64
    minibatches: int = 120_000
    block: int = 2
    """Minibatches per block of BMUF; stands for 100."""
    threshold: float = 8.0
    """tau of GTC."""

    def scenario(self) -> Scenario:
        """Describe the trainings: workers that are equally fast, 16 per host, with momentum."""
        return Scenario(
            minibatches=self.minibatches,
            stands_for=100 / self.block,
            warmup=0.02,
            optimizer="momentum",
            rate=0.1 / FEWER,
            final_rate=0.004 / FEWER,
            max_rate=1.1 / FEWER,
            times=StepTimes(0.3),
            network=Network(per_host=16),
            gtc=GtcConfig(threshold=self.threshold),
            bmuf=BmufConfig(block=self.block),
        )

    def outcomes(self, task: Task, report: Report) -> Iterator[tuple[str, Outcome]]:
        """Train one worker alone, then all of them with every method."""
        plain, number = self.scenario(), self.workers
        half = partial(candidates.ssgd_rounded, rounding=candidates.to_float16, share=0.5)
        bits = partial(candidates.ssgd_rounded, rounding=candidates.to_8_bits, share=0.25)
        higher = replace(plain, gtc=GtcConfig(threshold=FEWER * self.threshold))
        corrected = partial(synchronous.compressed, make=candidates.CorrectedState, last="sgd")
        slow = replace(plain, bmuf=candidates.slow_momentum(number, self.block))
        averaged = replace(plain, bmuf=BmufConfig(self.block, momentum=0.0, rate=1 / number))
        yield "one worker", simulate("ssgd", 1, plain, task)
        cases = [
            ("S-SGD", plain, synchronous.ssgd),
            ("S-SGD, float16", plain, half),
            ("S-SGD, 8 bits", plain, bits),
            ("GTC", plain, synchronous.gtc),
            ("GTC, momentum corrected", higher, corrected),
            ("BMUF", plain, synchronous.bmuf),
            ("BMUF as SlowMo", slow, synchronous.bmuf),
            ("local SGD", averaged, synchronous.bmuf),
            *(
                (
                    f"S-SGD to {until:.0%}, then local SGD",
                    averaged,
                    partial(candidates.post_local, until=until),
                )
                for until in (0.25, 0.5)
            ),
            ("S-SGD to 50%, then BMUF", plain, partial(candidates.post_local, until=0.5)),
        ]
        for name, scenario, method in cases:
            yield name, method(Run(name, number, scenario, task))
            report(name)

    @property
    def note(self) -> str:
        """Describe the study."""
        return (
            f"{self.minibatches:,} minibatches of 8 frames, SGD with momentum 0.9; all workers are "
            "equally fast, 16 per host with 25 Gbit/s, so that efficiency is lost by communication "
            "alone. A model has 97 MB, a step takes 0.3 s. What rounding leaves of a gradient is "
            f"added to the next one. Blocks of {self.block} minibatches stand for 100; tau is "
            f"{self.threshold:g}, with corrected momentum {FEWER * self.threshold:g}."
        )

    def rows(self, outcomes: list[tuple[str, Outcome]]) -> list[dict[str, object]]:
        """Return a row for each training."""
        alone = outcomes[0][1].accuracy
        return [
            {
                "method": name,
                "workers": outcome.workers,
                "accuracy, %": round(100 * outcome.accuracy, 2),
                "against one, %": round(100 * (outcome.accuracy / alone - 1), 2),
                "efficiency, %": round(100 * float(outcome.efficiency), 1),
                "MB per step": round(outcome.bytes_per_step / 1e6, 2),
            }
            for name, outcome in outcomes
        ]
