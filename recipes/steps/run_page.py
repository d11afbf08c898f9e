"""The page of a run, written where a recipe ends."""

from pathlib import Path

from toolkit.stages.directory import RunDirectory
from toolkit.storage.paths import printable

PAGE = "report.html"


def show_page(directory: Path) -> None:
    """Write the report of a run beside its results and print its address.

    A page that is newer than every stage and the results is left as it is. A page that cannot be
    drawn, for whatever reason, does not fail the run: that is said, with the command to try again.
    """
    path = directory / PAGE
    try:
        if _outdated(directory, path):
            from toolkit.report.run_page import write_report

            write_report(directory, path)
        print(f"Report: {path.resolve().as_uri()}")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        print(printable(f"No report, which `toolkit report {directory}` would write: {reason}"))


def _outdated(directory: Path, path: Path) -> bool:
    if not path.is_file():
        return True
    made = [*RunDirectory(directory).stages.glob("[0-9][0-9].json"), directory / "results.json"]
    return any(one.stat().st_mtime_ns > path.stat().st_mtime_ns for one in made if one.exists())
