"""Disturbs every stage of the recipes, and compares what they make then with an undisturbed run.

    make torture NUMBER=100 SEED=7
    .venv/bin/python -m tests.torture --number 100 --seed 7 --folder /tmp/torture

Each trial takes the stage that was disturbed least so far, in this call or in an earlier one that
used the same folder, and disturbs it by the faults that it has had least, up to six one after the
other. Then the same command must end it, and its outputs must be those of the undisturbed run, byte
for byte. Files that hold times of computing are not compared.
"""

import argparse
import os
import random
import shutil
import sys
import time
from pathlib import Path

from tests.torture import clock  # noqa: F401  # before whatever asks for the time

# isort: split
from tests.torture import forked
from tests.torture.comparison import FailedTrialError
from tests.torture.counts import FAILED, OVER, Counts
from tests.torture.faults import FAULTS, Place, mount_disk
from tests.torture.recipes import NAMES, command
from tests.torture.trial import Bench, Trial
from toolkit.startup import default_to_one_thread

MOST_FAULTS = 6
SPARE = 3
"""The disk on which a run is disturbed is so many times as large, and `ROOM` bytes."""
ROOM = 256 << 20
NAMESPACE = "TORTURE_NAMESPACE"


def main() -> None:
    """Run the trials; exit status 1 after failures, which are listed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--number", type=int, default=100, help="trials; default: 100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipe", choices=NAMES, action="append", help="default: all three")
    parser.add_argument("--folder", type=Path, default=Path("torture"), help="kept, and used again")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    folder = options.folder.absolute()
    names = options.recipe or list(NAMES)
    benches = {name: bench(name, folder) for name in names}
    kinds = [k for k in FAULTS if k != "full" or all(b.place.own_disk for b in benches.values())]
    if "full" not in kinds:
        print("no disk can be mounted here: none is filled", flush=True)
    counts, path = Counts.read(folder / "counts.json"), folder / "counts.json"
    numbers = {name: stages(each.reference) for name, each in benches.items()}
    done = sum(counts.compared.values())
    failures = []
    for trial in range(done, done + options.number):
        if time.monotonic() > end:
            break
        failures += run_trial(benches, numbers, kinds, options.seed, trial, counts)
        counts.write(path)
    print(counts.table(numbers, FAULTS))
    sys.exit("\n".join(failures) or None)


def bench(name: str, folder: Path) -> Bench:
    """Return a recipe with its undisturbed run, which is made if it is not there."""
    recipe = command(name, folder / "inputs")
    reference, disk = folder / name, folder / f"{name}-disk"
    log, done = folder / f"{name}.log", folder / f"{name}.done"
    if not done.exists():  # made where the trials are: the pipeline names features after a place
        shutil.rmtree(reference, ignore_errors=True)
        if status := recipe.finish(disk / "exp", log):
            sys.exit(f"exit status {status} of {recipe.script}; see {log}")
        shutil.move(disk / "exp", reference)
        done.touch()
    size = sum(p.stat().st_size for p in reference.rglob("*") if p.is_file())
    private = bool(os.environ.get(NAMESPACE))
    new_bench = Bench(
        name,
        recipe,
        reference,
        Place(disk / "exp", private and mount_disk(disk, SPARE * size + ROOM)),
        folder,
    )
    new_bench.renew()
    forked.preload(recipe.script)
    return new_bench


def stages(exp: Path) -> list[int]:
    """Return the numbers of the stages that a run has finished."""
    return sorted(int(path.stem) for path in exp.glob("stages/[0-9][0-9].json"))


def run_trial(
    benches: dict[str, Bench],
    numbers: dict[str, list[int]],
    kinds: list[str],
    seed: int,
    trial: int,
    counts: Counts,
) -> list[str]:
    """Try one stage, count what happened, and return what failed, if anything did."""
    chance = random.Random(f"{seed} {trial}")
    every = [(name, number) for name in benches for number in numbers[name]]
    name, stage = counts.next_stage(chance.sample(every, len(every)))
    used = counts.next_kinds(
        name, stage, chance.sample(kinds, len(kinds)), chance.randint(1, MOST_FAULTS)
    )
    tried, began = benches[name], sum(os.times()[:4])
    counts.used(name, seed)
    attempt = Trial(tried, stage)
    try:
        if str(stage) not in counts.durations.get(name, {}):
            tried.measure(stage, counts)
        happened = attempt.run(used, chance, counts)
        for kind in happened:
            counts.add(name, stage, kind)
        if happened[-1:] == [OVER] and 0 < attempt.took < counts.durations[name][str(stage)]:
            counts.durations[name][str(stage)] = attempt.took
        failed = []
    except FailedTrialError as failure:
        happened = [FAILED]
        counts.add(name, stage, FAILED)
        failure_folder = tried.folder / f"failed-{trial:05d}"
        shutil.copytree(tried.place.exp, failure_folder / "exp", symlinks=True, dirs_exist_ok=True)
        (failure_folder / "output.txt").write_text(attempt.output)
        failed = [
            f"{name} {stage} seed {seed} trial {trial} {used}: {failure}; see {failure_folder}"
        ]
        tried.renew()
    took = sum(os.times()[:4]) - began
    counts.failures += failed
    counts.compared[name] = counts.compared.get(name, 0) + 1
    counts.seconds[name] = counts.seconds.get(name, 0.0) + took
    print(
        f"{trial} {name} {stage}: {', '.join(happened)} ({took:.1f} s of processor time)",
        *failed,
        flush=True,
    )
    return failed


def begin_again() -> None:
    """Begin again with one thread, as a recipe does before it loads torch.

    And where this process may mount disks that nobody else sees, if there is a way.
    """
    if NAMESPACE in os.environ:
        return
    default_to_one_thread()
    words, os.environ[NAMESPACE] = [], ""
    if unshare := shutil.which("unshare"):
        tried = [unshare, "--mount", *(["--user", "--map-root-user"] if os.geteuid() else [])]
        if os.spawnv(os.P_WAIT, unshare, [*tried, "true"]) == 0:
            words, os.environ[NAMESPACE] = tried, "1"
    words += [sys.executable, "-m", "tests.torture", *sys.argv[1:]]
    sys.stdout.flush()
    os.execv(words[0], words)


if __name__ == "__main__":
    begin_again()
    main()
