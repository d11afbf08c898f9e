"""Disturbs every stage of the recipes, and compares what they make then with an undisturbed run.

    make torture NUMBER=100 SEED=7
    .venv/bin/python -m tests.torture --number 100 --seed 7 --folder /tmp/torture

Each trial takes the next stage of the next recipe, so that short and long stages get as many. On a
copy of the finished run that stage is begun again with `--force` and disturbed at a random moment
after it has begun; then the same command must end it, and its outputs must be those of the
undisturbed run, byte for byte. Files that hold times of computing are not compared.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from itertools import zip_longest
from pathlib import Path

from tests.torture.recipes import NAMES, Command, command

FAULTS = ("kill", "term", "stop", "limit", "unwritable")
ENDS = {"kill": (-signal.SIGKILL,), "term": (143,), "stop": (-signal.SIGKILL,)}
COMPARED = (".safetensors", ".arpa", ".tar", ".npy", ".flac", ".wav", ".txt", ".ctm")
NAMED = ("text", "tuned.json", "tree.json", "topology.json", "normaliser.json")
LONGEST = 1800.0
"""Seconds after which a command counts as hanging."""


class FailedTrialError(Exception):
    """Something that must not happen."""


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
    folder, chance = options.folder.absolute(), random.Random(options.seed)
    commands = {n: command(n, folder / "inputs") for n in options.recipe or NAMES}
    for name, recipe in commands.items():
        finish(recipe, folder / name, folder / f"{name}.log")
    counts, failures = Counter(), []
    trials = order({name: stages(folder / name) for name in commands}, chance)
    for number in range(options.number):
        if time.monotonic() > end:
            break
        name, stage = trials[number % len(trials)]
        fault = FAULTS[number % len(FAULTS)]
        log = folder / f"trial-{number:05d}.log"
        try:
            how = trial(commands[name], folder / name, folder / "trial", stage, fault, chance, log)
            log.unlink()
        except FailedTrialError as failure:
            how = "FAILED"
            failures.append(f"trial {number}: {name} {stage} {fault}: {failure}; see {log}")
            print(failures[-1], flush=True)
        counts[fault, how] += 1
        print(f"{number} {name} {stage} {fault}: {how}", flush=True)
    for (fault, how), count in sorted(counts.items()):
        print(f"{fault:12s}{how:12s}{count:6d}")
    sys.exit("\n".join(failures) or None)


def order(found: dict[str, list[int]], chance: random.Random) -> list[tuple[str, int]]:
    """Return every stage of every recipe once, the recipes in turns and their stages shuffled."""
    lists = [[(name, n) for n in chance.sample(own, len(own))] for name, own in found.items()]
    return [item for turn in zip_longest(*lists) for item in turn if item is not None]


def stages(exp: Path) -> list[int]:
    """Return the numbers of the stages that a run has finished."""
    return sorted(int(path.stem) for path in exp.glob("stages/[0-9][0-9].json"))


def finish(recipe: Command, exp: Path, log: Path, *arguments: str) -> None:
    """Run a recipe to its end."""
    process = recipe.start(exp, log, *arguments)
    try:
        status = process.wait(LONGEST)
    except BaseException:
        end(process)
        raise
    if status:
        raise FailedTrialError(f"exit status {status} of a command that nobody disturbed")


def trial(
    recipe: Command,
    reference: Path,
    exp: Path,
    stage: int,
    fault: str,
    chance: random.Random,
    log: Path,
) -> str:
    """Disturb a stage on a copy of a finished run, end it, and compare.

    Returns:
      "disturbed", or "done" if the stage was over before the fault.

    Raises:
      FailedTrialError: the disturbed command ended otherwise than it should, the same command did
        not go on, or the outputs differ.
    """
    shutil.rmtree(exp, ignore_errors=True)
    shutil.copytree(reference, exp, symlinks=True)
    marker = json.loads((reference / "stages" / f"{stage:02d}.json").read_text())
    only = ("--stage", str(stage), "--stop-stage", str(stage), "--force", str(stage))
    moment = chance.uniform(0, max(marker["seconds"], 0.2))
    limit = int(10 ** chance.uniform(2, 6.5))  # bytes
    options = {}
    if fault == "limit":  # as on a full disk, but for the errno
        options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    process = recipe.start(exp, log, *only, **options)
    disturbed = disturb(process, exp, stage, fault, moment, log)
    status = process.wait(LONGEST)
    end(process)
    for path in (exp / ".partial", exp / "stages"):
        path.chmod(0o755)
    said = log.read_text()
    if "Traceback" in said and fault != "limit":
        raise FailedTrialError("a traceback")
    if disturbed and status and fault in ENDS and status not in ENDS[fault]:
        raise FailedTrialError(f"exit status {status} after {fault}")
    if status:
        finish(recipe, exp, log, *only)
    compare(reference, exp, stage)
    return "disturbed" if status else "done"


def disturb(process, exp: Path, stage: int, fault: str, moment: float, log: Path) -> bool:
    """Wait until the stage has begun and some seconds more, then do what the fault is."""
    while process.poll() is None and f"== {stage} " not in log.read_text():
        time.sleep(0.01)
    until = time.monotonic() + moment
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    if process.poll() is not None:
        return False
    with contextlib.suppress(ProcessLookupError):
        if fault == "kill":
            os.killpg(process.pid, signal.SIGKILL)
        elif fault == "term":
            process.terminate()
        elif fault == "stop":
            os.killpg(process.pid, signal.SIGSTOP)
            time.sleep(0.2)
            os.killpg(process.pid, signal.SIGKILL)
        elif fault == "unwritable":  # root may write all the same: a run that nothing disturbs
            for path in (exp / ".partial", exp / "stages"):
                path.chmod(0o555)
    return True


def end(process) -> None:
    """Kill what is left of a process's group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def compare(reference: Path, exp: Path, stage: int) -> None:
    """Compare the outputs of a stage with those of the undisturbed run, and look for leftovers."""
    found = [digests(root / "stages" / f"{stage:02d}.json") for root in (reference, exp)]
    if different := sorted(n for n in found[0] | found[1] if found[0].get(n) != found[1].get(n)):
        raise FailedTrialError(f"{len(different)} files differ: {', '.join(different[:5])}")
    for name, digest in found[1].items():
        if not (exp / name).is_file() and digest:
            raise FailedTrialError(f"{name} is in the marker and not on disk")
    partial = exp / ".partial"
    if left := [str(path) for path in partial.rglob("*") if path.is_file()]:
        raise FailedTrialError(f"left in .partial: {', '.join(left[:5])}")


def digests(path: Path) -> dict[str, str]:
    """Return {file: digest} of a marker's outputs that must not differ between runs."""
    found = {}
    for name, content in json.loads(path.read_text())["outputs"].items():
        files = content.get("files") or {"": content["digest"]}
        found |= {f"{name}/{file}".rstrip("/"): digest for file, digest in files.items()}
    return {n: d for n, d in found.items() if n.endswith(COMPARED) or Path(n).name in NAMED}


if __name__ == "__main__":
    main()
