"""A recipe of three stages, the second of which all ranks run together."""

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.processes import ranks
from toolkit.stages.recipe import Recipe
from toolkit.storage.files import write_atomically


@dataclass(frozen=True)
class Config:
    words: tuple[str, ...] = ("one", "two")


recipe = Recipe("parallel", Path(__file__), {"demo": Config})


@recipe.stage(1, "Write the words")
def write(run):
    assert (ranks.rank(), ranks.world_size()) == (0, 1)
    run.make("words.json").write_text(json.dumps(run.config.words))


@recipe.stage(2, "Work together", distributed=True)
def together(run):
    words = json.loads(run.need("words.json").read_text())
    out = run.make("together")
    fault = os.environ.get("FAULT", "")
    if ranks.rank() == 0 and fault == "leader":
        raise ToolkitError("the disk is full")
    if ranks.rank() == 1 and fault in ("fault", "bug", "kill"):
        time.sleep(1.5)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ToolkitError("utterance a-1 is broken") if fault == "fault" else KeyError("a-1")
    shared = ranks.on_rank_zero(
        lambda: {"by": ranks.rank(), "of": ranks.world_size(), "words": words}
    )
    assert shared["of"] == 1
    write_atomically(out / "by.txt", f"{ranks.rank()} {shared['by']}")
    write_atomically(out / f"own-{ranks.rank()}.txt", "mine", every_rank=True)
    if fault:
        time.sleep(100 if fault == "kill" else 0)
        ranks.connect().barrier()
    run.progress(1, 1)
    return {"rank": ranks.rank(), "words": len(words)}


@recipe.stage(3, "Count")
def count(run):
    assert (ranks.rank(), ranks.world_size()) == (0, 1)
    names = sorted(path.name for path in run.need("together").iterdir())
    run.make("names.json").write_text(json.dumps(names))
    return {"files": len(names)}


if __name__ == "__main__":
    recipe.main()
