"""A tiny recipe in its own folder, driven in forked or in new processes."""

import contextlib
import importlib.util
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

# Loaded before the forks, so that each of them starts at once.
import toolkit.stages.command_line
import toolkit.stages.recipe  # noqa: F401
from tests.log_lines import untimed
from toolkit.stages.marker import code_version

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = Path(__file__).parent / "sample" / "run.py"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")


@dataclass
class Result:
    status: int
    raw: str

    @property
    def output(self):
        """The output without times."""
        return untimed(self.raw)


class Sample:
    """The sample recipe, copied to a new folder with a corpus beside it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.script = folder / "run.py"
        self.processes = []
        folder.mkdir(parents=True)
        shutil.copy(SAMPLE, self.script)
        (folder / "corpus").mkdir()
        for name, text in (("a", "one two three"), ("b", "two four")):
            (folder / "corpus" / f"{name}.txt").write_text(text)
        self.exp = folder / "exp" / "demo"
        code_version(folder)  # remembered by the forks, which would each ask git again

    def main(self, *arguments, at_write=None, fault=None, env=None, setup=None):
        """Run the command line in a fork of this process.

        With `at_write` = n, `fault` (a callable) is called just before the n-th time that a file
        in the run directory is opened for writing, renamed, removed or made.
        """
        log = self.folder / "output.txt"
        pid = os.fork()
        if pid == 0:
            status = 99
            try:
                os.environ.update(env or {})
                with open(log, "w") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
                sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
                # A kill leaves the kernel's buffers alone; only a power cut needs the wait.
                os.fsync = lambda descriptor: None
                sys.argv = [str(self.script)]
                recipe = self.load()
                if setup:
                    setup()
                if at_write is not None:
                    self._count_writes(at_write, fault)
                recipe.main([str(argument) for argument in arguments])
            except SystemExit as exit_:
                status = exit_.code or 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                os._exit(status)
        _, code = os.waitpid(pid, 0)
        return Result(os.waitstatus_to_exitcode(code), log.read_text())

    def process(self, *arguments, cwd=None, **env):
        """Start the script as a user does, in a new interpreter."""
        process = subprocess.Popen(
            [sys.executable, str(self.script), *map(str, arguments)],
            cwd=cwd or self.folder,
            env=os.environ | {"PYTHONPATH": str(PROJECT)} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell ignores interrupts in what it starts in the background, and so would we.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.processes.append(process)
        return process

    def load(self):
        spec = importlib.util.spec_from_file_location("sample_recipe", self.script)
        module = importlib.util.module_from_spec(spec)
        sys.modules["sample_recipe"] = module
        spec.loader.exec_module(module)
        return module.recipe

    def outputs(self, exp=None):
        """Return {relative path: bytes} of the stages' outputs."""
        exp = exp or self.exp
        paths = [path for path in exp.rglob("*") if path.is_file()]
        relative = {path.relative_to(exp): path for path in paths}
        return {
            str(name): path.read_bytes()
            for name, path in sorted(relative.items())
            if name.parts[0] not in ("stages", ".partial", "log.txt")
        }

    def leftovers(self, exp=None):
        """Return the files that only an unfinished run has."""
        exp = exp or self.exp
        partial = [path for path in (exp / ".partial").rglob("*") if path.is_file()]
        stages = [*exp.glob("stages/*.tmp"), *exp.glob("stages/.*.tmp")]
        return [*partial, *stages, *exp.glob("stages/*publishing*"), *exp.glob("stages/*.failed*")]

    def _count_writes(self, at, fault):
        writes = 0

        def hook(event, arguments):
            nonlocal writes
            if event == "open":
                path, _, flags = arguments
                counts = bool(flags & WRITES)
            elif event in EVENTS:
                path, counts = arguments[0], True
            else:
                return
            # Inside a folder that is being deleted, names are relative to it.
            inside = isinstance(path, str | os.PathLike) and (
                os.fspath(path).startswith(str(self.exp)) or "/" not in os.fspath(path)
            )
            if counts and (inside or isinstance(path, int)):
                writes += 1
                if writes == at:
                    fault()

        sys.addaudithook(hook)


@pytest.fixture
def sample():
    # In memory where possible: a disk shared with others can take a second for one rename.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        sample = Sample(Path(folder).resolve() / "recipe")
        yield sample
        for process in sample.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The outputs of an uninterrupted run."""
    sample = Sample(tmp_path_factory.mktemp("finished") / "recipe")
    result = sample.main()
    assert result.status == 0, result.output
    return sample.outputs()
