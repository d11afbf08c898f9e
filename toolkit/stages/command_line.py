"""The command line of every recipe."""

import difflib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from glob import has_magic
from pathlib import Path
from typing import Any, NoReturn

import click

from toolkit.config.settings import (
    all_keys,
    flatten,
    load_config,
    result_parameters,
    to_plain,
)
from toolkit.environment import usable_cpus
from toolkit.errors import ToolkitError
from toolkit.processes import ranks
from toolkit.processes.devices import check_device
from toolkit.processes.watchdog import WorkerLostError
from toolkit.processes.workers import freeze_imports, import_modules
from toolkit.stages.declaration import Declaration, RunOptions
from toolkit.stages.directory import RunDirectory, storage_error
from toolkit.stages.distributed import follow_rank_zero, release_ranks
from toolkit.stages.listing import show_list, show_plan, show_stale_code
from toolkit.stages.log import (
    StageLog,
    report_broken_output,
    survive_broken_output,
    toolkit_logs,
)
from toolkit.stages.marker import Provenance
from toolkit.stages.plan import Planner, is_path
from toolkit.stages.runner import Runner
from toolkit.stages.signals import INTERRUPTED, exit_on_signals
from toolkit.storage.paths import check_utf8, printable
from toolkit.storage.reading import DAMAGE_ERRORS, read_json

OUTPUT_SETTINGS = {"corpus.pipes"}
"""Settings that name an output of the run, which need not exist."""
_LAST_COMMAND = {"recipe": str, "profile": str, "set": [str], "config": str | None}


class SelectionError(ToolkitError):
    """A stage, a profile or a range of stages that the recipe does not have."""


class ProfileError(ToolkitError):
    """A stage could not be profiled."""


class _RunFolder(click.Path):
    """A click type for a path that is not empty; click takes "" for the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, or fail if it is empty."""
        if value == "":
            raise SelectionError("--exp is empty: if it is a shell variable, check that it is set")
        return super().convert(value, param, ctx)


def run_command(recipe: Declaration, arguments: Sequence[str]) -> NoReturn:
    """Run the command line of a recipe, and exit.

    Exit status: 0 when all is done, 1 after an error (one message on standard error), 2 when an
    option is not known, 130 after Ctrl-C, 143 after SIGTERM.
    """
    freeze_imports()
    with exit_on_signals(), _exit_on_errors():
        # 1. Parse the options; contradictory ones are errors.
        program = Path(sys.argv[0]).name
        typed = _click_command(recipe).make_context(program, list(arguments)).params
        profile = chosen_profile(recipe, typed["profile"])
        directory = RunDirectory(typed["exp"] or recipe.directory(profile))
        options = _run_options(recipe, profile, directory, typed, [sys.argv[0], *arguments])
        last_command = {
            "recipe": recipe.name,
            "profile": profile,
            "set": list(typed["overrides"]),
            "config": str(typed["config"].absolute()) if typed["config"] else None,
        }
        # 2. Options that only print: no lock, nothing is written.
        if typed["listing"] or typed["dry_run"] or typed["stale_code"]:
            if ranks.rank() == 0:
                with report_broken_output(), _storage_errors(directory.root):
                    _compare_with_last(directory, last_command, to_stderr=typed["as_json"])
                    _show(recipe, directory, options, typed)
        # 3. Under torchrun rank 0 owns the run directory; the others join it in training stages.
        elif ranks.rank() > 0:
            import_modules(recipe.modules)
            follow_rank_zero(recipe.stages, directory, options)
        # 4. A flame graph: the same command line again, under py-spy.
        elif typed["profile_stage"] is not None:
            with _storage_errors(directory.root):
                _profile(recipe, directory, options)
        # 5. A run: lock the directory, record the command for the next run, and run the stages.
        else:
            stage_log = StageLog(directory.log, options.verbosity)
            with survive_broken_output(stage_log.write_to_file), _storage_errors(directory.root):
                _compare_with_last(directory, last_command, to_stderr=False)
                _note_missing(options.config)
                with (
                    release_ranks(),
                    directory.lock(options.command),
                    toolkit_logs(stage_log),
                    _progress_bars(options),
                ):
                    last = json.dumps(last_command | {"command": options.command}, indent=1)
                    directory.write(directory.last_command, last + "\n")
                    runner = Runner(recipe.stages, directory, options, stage_log, recipe.modules)
                    directory.write_places(runner.planner.names.folders)
                    runner.run()
                if recipe.on_finish and options.last == recipe.stages[-1].number:
                    recipe.on_finish(directory.root)
    sys.exit(0)


@contextmanager
def _exit_on_errors() -> Iterator[None]:
    """Print the message of an error that ends a `with` block, and exit with its status."""
    try:
        yield
    except ToolkitError as error:
        if ranks.rank() == 0 or not isinstance(error, WorkerLostError):  # rank 0 reports that
            click.echo(f"error: {printable(str(error))}", err=True)
        sys.exit(1)
    except BrokenPipeError:  # as with `--list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as end:  # of --help
        sys.exit(end.exit_code)
    except (KeyboardInterrupt, click.Abort):  # if Ctrl-C has another handler
        click.echo("interrupted; run the same command again to continue", err=True)
        sys.exit(INTERRUPTED)


@contextmanager
def _storage_errors(root: Path) -> Iterator[None]:
    """Turn OSErrors in a `with` block into messages that say what to do."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise storage_error(error, root) or ToolkitError(str(error)) from error


def _progress_bars(options: RunOptions) -> AbstractContextManager[None]:
    """Return a context that hides progress bars if the run is quiet."""
    if options.verbosity != "quiet":
        return nullcontext()
    from toolkit.processes.bars import hide_progress_bars

    return hide_progress_bars()


def _click_command(recipe: Declaration) -> click.Command:
    """Return the click command with the options of a recipe's command line."""
    stages = "\n".join(f"{stage.number:3d}  {stage.title}" for stage in recipe.stages)
    options = [
        click.Option(["--stage"], metavar="N", help="First stage to run."),
        click.Option(["--stop-stage"], metavar="M", help="Last stage to run."),
        click.Option(
            ["--list", "listing"], is_flag=True, help="Show each stage's state and result."
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="With --list: print JSON."),
        click.Option(
            ["--dry-run"], is_flag=True, help="Show which stages would run or be skipped, and why."
        ),
        click.Option(
            ["--stale-code"],
            is_flag=True,
            help="Show the stages that ran with a different version of the code or packages.",
        ),
        click.Option(
            ["--accept-code-change"],
            is_flag=True,
            help="Continue an interrupted stage even if it was begun with a different version of "
            "the code or packages.",
        ),
        click.Option(
            ["--force"],
            multiple=True,
            metavar="N",
            help="Run stage N even if it is done; may be repeated.",
        ),
        click.Option(
            ["--profile-stage"],
            metavar="N",
            help="Run stage N alone, even if it is done, and draw a flame graph with py-spy: "
            "profiles/N.svg in the run directory.",
        ),
        click.Option(
            ["--profile"],
            metavar="NAME",
            help=f"Name of the base settings: {', '.join(recipe.profiles)}; default: the first.",
        ),
        click.Option(
            ["--set", "overrides"],
            multiple=True,
            metavar="KEY=VALUE",
            help=f"Change a setting, e.g. --set {_example(recipe)}; may be repeated.",
        ),
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path),
            help="YAML file with settings; --set overrides it.",
        ),
        click.Option(
            ["--exp"],
            type=_RunFolder(path_type=Path),
            help=f"The run directory; default: exp/{recipe.exp_prefix}PROFILE beside the recipe.",
        ),
        click.Option(
            ["--device"],
            metavar="NAME",
            help="Device to compute on: cpu, cuda, ...; default: a GPU if there is one.",
        ),
        click.Option(
            ["--jobs"],
            type=click.IntRange(min=1),
            help="Number of worker processes, or of threads while a GPU computes; default: one "
            "per core.",
        ),
        click.Option(
            ["--quiet", "verbosity"],
            flag_value="quiet",
            help="Print only warnings, errors and results.",
        ),
        click.Option(
            ["--verbose", "verbosity"],
            flag_value="verbose",
            help="Print more details, and begin each line with the time.",
        ),
    ]
    return click.Command(
        recipe.name,
        params=options,
        help=f"{recipe.title or recipe.name}\n\nWithout options: run every stage that is not done.",
        epilog=f"\b\nStages:\n{stages}",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def _example(recipe: Declaration) -> str:
    """Return an example for --set: the folder of a corpus, or else the recipe's first setting."""
    try:
        keys = list(all_keys(next(iter(recipe.profiles.values()))()))
    except ToolkitError:  # a run reports it
        keys = []
    if roots := [key for key in keys if key.split(".")[-1] == "root"]:
        return f"{roots[0]}=/data/speech"
    return f"{keys[0]}=VALUE" if keys else "KEY=VALUE"


def _run_options(
    recipe: Declaration,
    profile: str,
    directory: RunDirectory,
    typed: Mapping[str, Any],
    words: Sequence[str],
) -> RunOptions:
    """Return the run options that were given on the command line.

    Args:
      recipe: the recipe of the command line.
      profile: its profile.
      directory: its run directory.
      typed: values by the names of click's options.
      words: words of the command line.

    Raises:
      ToolkitError: options contradict each other, or name something that does not exist.
    """
    # 1. The range of stages, and those to run again.
    first, last = recipe.stages[0].number, recipe.stages[-1].number
    if typed["stage"] is not None:
        first = _stage(recipe, "--stage", typed["stage"])
    if typed["stop_stage"] is not None:
        last = _stage(recipe, "--stop-stage", typed["stop_stage"])
    forced = frozenset(_stage(recipe, "--force", number) for number in typed["force"])
    if typed["profile_stage"] is not None:
        if typed["stage"] or typed["stop_stage"] or forced:
            raise SelectionError(
                "--profile-stage runs a single stage: leave out --stage, --stop-stage and --force"
            )
        first = last = _stage(recipe, "--profile-stage", typed["profile_stage"])
        if Provenance.read(directory.provenance(first)) is None:
            forced = frozenset((first,))  # an interrupted attempt is resumed instead
    # 2. Contradictions.
    if typed["listing"] and typed["dry_run"]:
        raise SelectionError(
            "--list shows the state of all stages, --dry-run the stages that would run: give only "
            "one of them"
        )
    if typed["as_json"] and not typed["listing"]:
        raise SelectionError("--json needs --list")
    if last < first:
        raise SelectionError(f"--stop-stage {last} comes before --stage {first}")
    for number in sorted(forced):
        if not first <= number <= last:
            raise SelectionError(f"--force {number} is outside stages {first} to {last}")
    # 3. The configuration. Markers and logs are UTF-8, so all texts in it must be valid UTF-8.
    check_device(typed["device"])
    config = load_config(
        recipe.profiles[profile], recipe.folder, typed["config"], typed["overrides"]
    )
    command = shlex.join(words)
    for text in (command, str(directory.root), *flatten(to_plain(config)).values()):
        check_utf8(str(text))
    return RunOptions(
        config=config,
        first=first,
        last=last,
        forced=forced,
        device=typed["device"],
        jobs=typed["jobs"] or usable_cpus(),
        command=command,
        source=recipe.folder,
        accept_code_change=typed["accept_code_change"],
        verbosity=typed["verbosity"] or "normal",
    )


def _show(
    recipe: Declaration, directory: RunDirectory, options: RunOptions, typed: Mapping[str, Any]
) -> None:
    """Print what --list, --stale-code or --dry-run asks for."""
    planner = Planner(directory, recipe.stages, options.config)
    if typed["listing"]:
        show_list(planner, recipe.folder, typed["as_json"])
    elif typed["stale_code"]:
        show_stale_code(planner, recipe.folder)
    else:
        _note_missing(options.config)
        show_plan(planner, options)


def _profile(recipe: Declaration, directory: RunDirectory, options: RunOptions) -> None:
    """Run the stage of the options in a new process, under py-spy.

    Raises:
      ProfileError: py-spy cannot run the stage, or the stage is not done afterwards; its process
        has then printed the reason.
    """
    number, output = options.first, directory.profile(options.first)
    script, *arguments = shlex.split(options.command)
    selection = ["--stage", str(number), "--stop-stage", str(number)]
    selection += ["--force", str(number)] if options.forced else []
    program = [sys.executable, script, *_without_profile_stage(arguments), *selection]
    profiler = _py_spy(output)
    directory.refuse_links(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    interrupts: list[int] = []
    process = subprocess.Popen([*profiler, *program])
    # Ctrl-C reaches py-spy too, which then draws what it has sampled: wait for it.
    signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    status = process.wait()
    if interrupts:
        sys.exit(INTERRUPTED)
    if status:
        raise ProfileError(f"py-spy failed with exit status {status}")
    stage = next(stage for stage in recipe.stages if stage.number == number)
    # py-spy does not pass on the exit status of the program: the marker tells whether it worked.
    state = Planner(directory, recipe.stages, options.config).state(stage)
    if not state.done:
        raise ProfileError(f"stage {number} did not finish: {state}")


def _py_spy(output: Path) -> list[str]:
    """Return py-spy's command line, to which the Python command to profile is appended.

    py-spy exits with 0 whatever the program's exit status is.

    Args:
      output: the SVG file; its folder must exist.

    Raises:
      ProfileError: there is no py-spy in this environment or on the PATH.
    """
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("py-spy", path=folders)
    if program is None:
        raise ProfileError(
            "py-spy, which draws the profile, is not installed. Install it with "
            f"{sys.executable} -m pip install py-spy"
        )
    return [program, "record", "--subprocesses", "--output", str(output), "--"]


def _without_profile_stage(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without --profile-stage and its value."""
    remaining = []
    words = iter(arguments)
    for word in words:
        if word == "--profile-stage":
            next(words)
        elif not word.startswith("--profile-stage="):
            remaining.append(word)
    return remaining


def chosen_profile(recipe: Declaration, name: str | None) -> str:
    """Return the name of a profile; None stands for the recipe's first.

    Raises:
      SelectionError: there is no such profile.
    """
    profile = next(iter(recipe.profiles)) if name is None else name
    if profile not in recipe.profiles:
        near = difflib.get_close_matches(profile, recipe.profiles, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else "."
        profiles = ", ".join(recipe.profiles)
        raise SelectionError(f"no profile `{profile}`{hint} Profiles: {profiles}")
    return profile


def _compare_with_last(directory: RunDirectory, present: dict, to_stderr: bool) -> None:
    """Print a note if the last run here had other settings: a forgotten `--set` makes stages stale.

    Raises:
      SelectionError: the directory holds a run of another recipe.
    """
    try:
        last = read_json(directory.last_command, _LAST_COMMAND)
    except DAMAGE_ERRORS:
        return
    if last["recipe"] != present["recipe"]:
        raise SelectionError(
            f"{directory.root} holds a run of the recipe {last['recipe']}; choose another "
            "directory with --exp DIR"
        )
    changed = [("--profile", last["profile"])] if last["profile"] != present["profile"] else []
    if last["set"] != present["set"]:
        changed += [("--set", override) for override in last["set"]]
    if last["config"] != present["config"] and last["config"]:
        changed += [("--config", last["config"])]
    if changed:
        options = " ".join(f"{option} {shlex.quote(value)}" for option, value in changed)
        note = f"note: the last run in {directory.root} had different options: {options}"
        click.echo(note, err=to_stderr)


def _note_missing(config: Any) -> None:
    """Print the settings that name a missing file: the stage that reads it may be hours away."""
    for key, value in flatten(result_parameters(config)).items():
        if key in OUTPUT_SETTINGS or not is_path(value) or has_magic(value):
            continue
        if not os.path.exists(value):
            click.echo(f"note: {key}={value} does not exist")


def _stage(recipe: Declaration, option: str, text: str) -> int:
    """Return the number of a stage that an option names."""
    titles = {stage.number: stage.title for stage in recipe.stages}
    text = text.strip()
    if text.isdecimal():
        if int(text) in titles:
            return int(text)
        near = min(titles, key=lambda number: abs(number - int(text)))
    else:
        words = {word.lower(): n for n, title in titles.items() for word in title.split()}
        match = difflib.get_close_matches(text.lower(), words, n=1)
        near = words[match[0]] if match else None
    hint = f"; did you mean {near} ({titles[near]})?" if near is not None else "."
    raise SelectionError(
        f"{option} {text}: no such stage{hint} Stages are numbered from {min(titles)} to "
        f"{max(titles)}; --list names them"
    )
