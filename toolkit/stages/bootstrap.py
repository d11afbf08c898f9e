"""Restarts a recipe in the project's own Python environment, so that `./run.py` works by itself.

This runs before the right interpreter is found, in any Python from 3.8 on, so it imports only the
standard library and `toolkit.startup`. A recipe starts with:

    #!/usr/bin/env python3
    import sys
    from pathlib import Path

    ROOT = Path(__file__).resolve().parents[2]
    sys.path.insert(0, str(ROOT))
    from toolkit.stages.bootstrap import use_project_environment

    use_project_environment(ROOT)
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from toolkit.startup import default_to_one_thread

NEEDED = ("click", "yaml", "torch", "lhotse")
# Holds the id of the process that has already changed interpreters; `execv` keeps the id.
GUARD_VARIABLE = "TOOLKIT_BOOTSTRAPPED"


def use_project_environment(root: Path) -> None:
    """Restart in the interpreter of `root`/.venv, with the same arguments, unless it is this one.

    An interpreter of `root`/.venv-reference, which serves to compare results with k2's, is kept.
    Nothing is done in a program that is not one of the project's own files, such as a test runner
    that imports a recipe. If a package is missing, a message says how to set up, and the process
    exits with status 1. Ctrl-C while the recipe's modules are imported prints "interrupted" and
    exits with status 130.
    """
    environment = Path(root).resolve() / ".venv"
    python = environment / "bin" / "python"
    # 1. Only the project's own programs restart themselves.
    main = getattr(sys.modules["__main__"], "__file__", None)
    if main is None or Path(root).resolve() not in Path(main).resolve().parents:
        return
    sys.excepthook = _end_quietly
    # 2. Set the environment variables that libraries read when they are loaded. OpenMP threads that
    # spin while they wait make training 14 times slower if another process uses one of the cores.
    # torch reads the variable when it is loaded, which is later.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    default_to_one_thread()
    # 3. Restart, once: the guard stops a loop if the new interpreter reports another prefix.
    reference = environment.with_name(".venv-reference")
    inside = Path(sys.prefix).resolve() in (environment.resolve(), reference.resolve())
    if not inside and python.exists() and os.environ.get(GUARD_VARIABLE) != str(os.getpid()):
        os.environ[GUARD_VARIABLE] = str(os.getpid())
        sys.stdout.flush()
        arguments = getattr(sys, "orig_argv", [sys.executable, *sys.argv])[1:]
        os.execv(str(python), [str(python), *arguments])
    # 4. This is the interpreter that runs the recipe. It must have the packages.
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        state = "is incomplete" if python.exists() else "is not set up yet"
        sys.stderr.write(
            "The project's environment {} (missing: {}).\n"
            "Set it up with: make -C {} -B setup\n".format(state, ", ".join(missing), root)
        )
        sys.exit(1)


def _end_quietly(
    kind: "type[BaseException]", error: BaseException, trace: "TracebackType | None"
) -> None:
    """Print the traceback, or one line for Ctrl-C, which nothing catches before the recipe runs."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write("\ninterrupted\n")
    sys.stderr.flush()
    os._exit(130)
