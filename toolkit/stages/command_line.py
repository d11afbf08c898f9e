"""The command line of every recipe."""

import difflib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any

import click

from toolkit.config.settings import (
    all_keys,
    apply_overrides,
    flatten,
    load_yaml,
    resolve_paths,
    result_parameters,
    to_plain,
)
from toolkit.environment import usable_cpus
from toolkit.errors import ToolkitError
from toolkit.processes import ranks
from toolkit.processes.devices import check_device
from toolkit.processes.profiler import py_spy
from toolkit.processes.watchdog import WorkerLostError
from toolkit.processes.workers import freeze_imports
from toolkit.stages.declaration import Declaration
from toolkit.stages.directory import RunDirectory, storage_error
from toolkit.stages.distributed import ending_followers, run_follower
from toolkit.stages.inputs import InputNames, is_path
from toolkit.stages.listing import show_list, show_plan, show_stale_code
from toolkit.stages.log import (
    StageLog,
    Verbosity,
    report_broken_output,
    survive_broken_output,
    toolkit_logs,
)
from toolkit.stages.marker import Provenance
from toolkit.stages.plan import Inspector
from toolkit.stages.runner import Runner
from toolkit.stages.signals import INTERRUPTED, exit_on_signals
from toolkit.stages.stage import Request
from toolkit.storage.paths import check_utf8, printable
from toolkit.storage.reading import DAMAGE_ERRORS, read_json


class SelectionError(ToolkitError):
    """A stage, a profile or a range of stages that the recipe does not have."""


class ProfileError(ToolkitError):
    """A stage could not be profiled."""


class _RunFolder(click.Path):
    """A path that is not empty, which would stand for the present folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        if value == "":
            raise SelectionError("--exp is empty: is a variable of the shell not set?")
        return super().convert(value, param, ctx)


@dataclass(frozen=True)
class Options:
    """The command line as typed."""

    profile: str | None
    stage: str | None
    stop_stage: str | None
    listing: bool
    as_json: bool
    dry_run: bool
    stale_code: bool
    accept_code_change: bool
    force: tuple[str, ...]
    profile_stage: str | None
    overrides: tuple[str, ...]
    config: Path | None
    exp: Path | None
    device: str | None
    jobs: int | None
    verbosity: Verbosity


def main(recipe: Declaration, arguments: Sequence[str] | None) -> None:
    """Parse `arguments` (default: the process's own), run what they ask for and exit.

    Exit status: 0 when all is done, 1 after an error (one message on standard error), 2 when an
    option is not known, 130 after Ctrl-C, 143 after SIGTERM.
    """
    freeze_imports()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    command = shlex.join([sys.argv[0], *arguments])

    @click.command(
        help=f"{recipe.title or recipe.name}\n\nWithout options: run every stage that is not done.",
        epilog=_epilog(recipe),
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    @click.option("--stage", metavar="N", help="First stage to run.")
    @click.option("--stop-stage", metavar="M", help="Last stage to run.")
    @click.option("--list", "listing", is_flag=True, help="Show each stage's state and result.")
    @click.option("--json", "as_json", is_flag=True, help="With --list: print JSON.")
    @click.option("--dry-run", is_flag=True, help="Show what would run or be skipped, and why.")
    @click.option(
        "--stale-code", is_flag=True, help="Show the stages that other code or packages made."
    )
    @click.option(
        "--accept-code-change",
        is_flag=True,
        help="Continue a stage that other code or packages have begun.",
    )
    @click.option("--force", multiple=True, metavar="N", help="Run stage N even if it is done.")
    @click.option(
        "--profile-stage",
        metavar="N",
        help="Run stage N alone, again if it is done, under py-spy, which draws a flame graph: "
        "profiles/N.svg in the run directory.",
    )
    @click.option(
        "--profile",
        metavar="NAME",
        help=f"The settings to start from: {', '.join(recipe.profiles)}; default: the first.",
    )
    @click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help=f"Change a setting, e.g. --set {_example(recipe)}; may be repeated.",
    )
    @click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="A YAML file of settings; --set overrides it.",
    )
    @click.option(
        "--exp",
        type=_RunFolder(path_type=Path),
        help=f"The run directory; default: exp/{recipe.prefix}PROFILE beside the recipe.",
    )
    @click.option(
        "--device", metavar="NAME", help="cpu, cuda, ...; default: a GPU if there is one."
    )
    @click.option(
        "--jobs",
        type=click.IntRange(min=1),
        help="Worker processes, or threads beside a GPU; default: one per core.",
    )
    @click.option(
        "--quiet",
        "verbosity",
        flag_value="quiet",
        help="Print warnings, errors and the results alone.",
    )
    @click.option(
        "--verbose",
        "verbosity",
        flag_value="verbose",
        help="Print more, and the time before each line.",
    )
    def run(**options: Any) -> None:
        options["verbosity"] = options["verbosity"] or "normal"
        _run(recipe, Options(**options), command)

    try:
        with exit_on_signals():
            run.main(args=arguments, prog_name=Path(sys.argv[0]).name, standalone_mode=False)
    except ToolkitError as error:
        if ranks.rank() == 0 or not isinstance(error, WorkerLostError):  # rank 0 reports that
            click.echo(f"error: {printable(str(error))}", err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:  # Ctrl-C where its handler is the user's
        sys.exit(INTERRUPTED)
    sys.exit(0)


def _example(recipe: Declaration) -> str:
    """Return a setting that the recipe has: the folder of a corpus, or the first, if any."""
    try:
        keys = list(all_keys(next(iter(recipe.profiles.values()))()))
    except ToolkitError:  # which a run reports
        keys = []
    if roots := [key for key in keys if key.split(".")[-1] == "root"]:
        return f"{roots[0]}=/data/speech"
    return f"{keys[0]}=VALUE" if keys else "KEY=VALUE"


def _epilog(recipe: Declaration) -> str:
    stages = "\n".join(f"{stage.number:3d}  {stage.title}" for stage in recipe.stages)
    return f"\b\nStages:\n{stages}"


def _run(recipe: Declaration, options: Options, command: str) -> None:
    profile = chosen_profile(recipe, options.profile)
    numbers = [stage.number for stage in recipe.stages]
    first = numbers[0] if options.stage is None else _stage(recipe, "--stage", options.stage)
    last = (
        numbers[-1]
        if options.stop_stage is None
        else _stage(recipe, "--stop-stage", options.stop_stage)
    )
    forced = frozenset(_stage(recipe, "--force", number) for number in options.force)
    if options.profile_stage is not None:
        if options.stage or options.stop_stage or forced:
            raise SelectionError("--profile-stage chooses the stage to run by itself")
        first = last = _stage(recipe, "--profile-stage", options.profile_stage)
    if options.listing and options.dry_run:
        raise SelectionError("--list shows what is done, --dry-run what would be: give one of them")
    if options.as_json and not options.listing:
        raise SelectionError("--json prints the stages together with --list")
    if last < first:
        raise SelectionError(f"--stop-stage {last} comes before --stage {first}")
    for number in sorted(forced):
        if not first <= number <= last:
            raise SelectionError(f"--force {number} is outside of stages {first} to {last}")
    check_device(options.device)
    directory = RunDirectory(options.exp or recipe.directory(profile))
    if options.profile_stage is not None and not Provenance.read(directory.provenance(first)):
        forced = frozenset((first,))  # an interrupted attempt is resumed instead
    config = resolve_paths(recipe.profiles[profile](), recipe.folder)
    if options.config:
        config = load_yaml(config, options.config)
    config = apply_overrides(config, options.overrides, Path.cwd())
    if hasattr(config, "refuse_contradictions"):
        try:
            config.refuse_contradictions()
        except ValueError as error:
            raise SelectionError(str(error)) from error
    jobs = options.jobs or usable_cpus()
    request = Request(
        config,
        first,
        last,
        forced,
        options.device,
        jobs,
        command,
        recipe.folder,
        options.accept_code_change,
    )
    for text in (command, str(directory.root), *flatten(to_plain(config)).values()):
        check_utf8(str(text))
    given = {
        "recipe": recipe.name,
        "profile": profile,
        "set": list(options.overrides),
        "config": str(options.config.absolute()) if options.config else None,
    }
    if options.profile_stage is not None and ranks.rank() == 0:
        _profile(recipe, directory, request)
        return
    if ranks.rank() > 0:
        if not (options.listing or options.dry_run or options.stale_code):
            run_follower(recipe.stages, directory, request)
        return
    stage_log = StageLog(directory.log, options.verbosity)
    executes = not (options.listing or options.stale_code or options.dry_run)
    try:
        with survive_broken_output(stage_log.write_to_file) if executes else report_broken_output():
            _compare_with_last(directory, given, options.as_json)
            if executes or options.dry_run:
                _note_missing(config)
            if options.listing:
                show_list(recipe, directory, config, options.as_json)
            elif options.stale_code:
                show_stale_code(recipe, directory, config)
            elif options.dry_run:
                show_plan(recipe, directory, request)
            else:
                _execute(recipe, directory, request, given, stage_log)
    except BrokenPipeError:  # as with `--list | head`: click ends the process quietly
        raise
    except OSError as error:
        raise storage_error(error, directory.root) or ToolkitError(str(error)) from error


def _execute(
    recipe: Declaration,
    directory: RunDirectory,
    request: Request,
    given: dict,
    stage_log: StageLog,
) -> None:
    with ending_followers(), directory.lock(request.command):
        last = json.dumps(given | {"command": request.command}, indent=1)
        directory.write(directory.last_command, last + "\n")
        directory.write_places(InputNames(directory.root, request.config).folders)
        with toolkit_logs(stage_log), ExitStack() as stack:
            if stage_log.verbosity == "quiet":
                from toolkit.processes.bars import hide_progress_bars

                stack.enter_context(hide_progress_bars())
            Runner(recipe.stages, directory, request, stage_log).run()
    if recipe.show and request.last == recipe.stages[-1].number:
        recipe.show(directory.root)


def _profile(recipe: Declaration, directory: RunDirectory, request: Request) -> None:
    """Run the stage of a request in a new process, under py-spy.

    Raises:
      ProfileError: py-spy cannot run it, or the stage is not done afterwards, which its process has
        explained.
    """
    number, output = request.first, directory.profile(request.first)
    directory.refuse_links(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    script, *arguments = shlex.split(request.command)
    stage = ["--stage", str(number), "--stop-stage", str(number)]
    stage += ["--force", str(number)] if request.forced else []
    program = [sys.executable, script, *_without_profile_stage(arguments), *stage]
    interrupts: list[int] = []
    process = subprocess.Popen([*py_spy(output), *program])
    # Ctrl-C reaches py-spy too, which draws what it has sampled.
    signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    status = process.wait()
    if interrupts:
        sys.exit(INTERRUPTED)
    if status:
        raise ProfileError(f"py-spy failed with exit status {status}")
    titles = {stage.number: stage.title for stage in recipe.stages}
    digests = directory.load_digests(InputNames(directory.root, request.config).folders)
    state = Inspector(directory, request.config, digests, titles).state(number)
    if not state.done:
        raise ProfileError(f"stage {number} is {state}")


def _without_profile_stage(arguments: Sequence[str]) -> list[str]:
    remaining = []
    words = iter(arguments)
    for word in words:
        if word == "--profile-stage":
            next(words)
        elif not word.startswith("--profile-stage="):
            remaining.append(word)
    return remaining


def chosen_profile(recipe: Declaration, name: str | None) -> str:
    """Return the name of a profile, None standing for the recipe's first.

    Raises:
      SelectionError: there is no such profile.
    """
    profile = next(iter(recipe.profiles)) if name is None else name
    if profile not in recipe.profiles:
        raise SelectionError(f"no profile `{profile}`{_choices(profile, recipe.profiles)}")
    return profile


_LAST = {"recipe": str, "profile": str, "set": [str], "config": str | None}


def _compare_with_last(directory: RunDirectory, given: dict, to_stderr: bool) -> None:
    """Note that the last run here had other settings: a forgotten `--set` makes stages stale."""
    try:
        last = read_json(directory.last_command, _LAST)
    except DAMAGE_ERRORS:
        return
    if last["recipe"] != given["recipe"]:
        raise SelectionError(
            f"{directory.root} holds a run of the recipe {last['recipe']}; choose another "
            "directory with --exp DIR"
        )
    changed = [("--profile", last["profile"])] if last["profile"] != given["profile"] else []
    if last["set"] != given["set"]:
        changed += [("--set", override) for override in last["set"]]
    if last["config"] != given["config"] and last["config"]:
        changed += [("--config", last["config"])]
    if changed:
        options = " ".join(f"{option} {shlex.quote(value)}" for option, value in changed)
        click.echo(f"note: the last run in {directory.root} had {options}", err=to_stderr)


_MADE = {"corpus.pipes"}
"""Settings that name what a run makes."""


def _note_missing(config: Any) -> None:
    """Note settings that name nothing: the stage that reads it may be hours away, or done."""
    for key, value in flatten(result_parameters(config)).items():
        if key in _MADE or not is_path(value) or has_magic(value) or os.path.exists(value):
            continue
        click.echo(f"note: {key} is {value}, where nothing is")


def _stage(recipe: Declaration, option: str, text: str) -> int:
    numbers = {str(stage.number): stage.number for stage in recipe.stages}
    text = text.strip()
    known = numbers.get(str(int(text))) if text.isdecimal() else None
    if known is not None:
        return known
    titles = {str(stage.number): stage.title for stage in recipe.stages}
    if text.isdecimal():
        near = str(min(numbers.values(), key=lambda number: abs(number - int(text))))
    else:
        words = {word.lower(): n for n, title in titles.items() for word in title.split()}
        match = difflib.get_close_matches(text.lower(), words, n=1)
        near = words[match[0]] if match else ""
    hint = f"; did you mean {near} ({titles[near]})?" if near else "."
    first, last = next(iter(numbers)), next(reversed(numbers))
    raise SelectionError(
        f"{option} {text}: no such stage{hint} Stages are numbered from {first} to {last}; --list "
        "names them"
    )


def _choices(given: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(given, known, n=1)
    return (f"; did you mean `{near[0]}`?" if near else ".") + f" Profiles: {', '.join(known)}"
