"""Methods that came after the papers', simulated with many workers: accuracy and efficiency."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from toolkit.bench.scaling.studies import Report
from toolkit.parallel.config import BmufConfig, GtcConfig
from toolkit.parallel.simulator import methods
from toolkit.parallel.simulator.methods import simulate
from toolkit.parallel.simulator.network import Network
from toolkit.parallel.simulator.run import Outcome, Run, Scenario, StepTimes
from toolkit.parallel.simulator.tasks import Task

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
        half = partial(methods.ssgd_rounded, rounding=methods.to_float16, share=0.5)
        bits = partial(methods.ssgd_rounded, rounding=methods.to_8_bits, share=0.25)
        higher = replace(plain, gtc=GtcConfig(threshold=FEWER * self.threshold))
        corrected = partial(methods.compressed, make=methods.CorrectedState, last="sgd")
        slow = replace(plain, bmuf=methods.slow_momentum(number, self.block))
        averaged = replace(plain, bmuf=BmufConfig(self.block, momentum=0.0, rate=1 / number))
        yield "one worker", simulate("ssgd", 1, plain, task)
        cases = [
            ("S-SGD", plain, methods.ssgd),
            ("S-SGD, float16", plain, half),
            ("S-SGD, 8 bits", plain, bits),
            ("GTC", plain, methods.gtc),
            ("GTC, momentum corrected", higher, corrected),
            ("BMUF", plain, methods.bmuf),
            ("BMUF as SlowMo", slow, methods.bmuf),
            ("local SGD", averaged, methods.bmuf),
            *(
                (
                    f"S-SGD to {until:.0%}, then local SGD",
                    averaged,
                    partial(methods.post_local, until=until),
                )
                for until in (0.25, 0.5)
            ),
            ("S-SGD to 50%, then BMUF", plain, partial(methods.post_local, until=0.5)),
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
