"""Report pages of damaged run directories."""

from tests.fuzz.hostile import *  # noqa: F403
from tests.fuzz.trial import Reader
from tests.report.conftest import MadeUpRun
from toolkit.report.run_folder import find_runs, table_lines
from toolkit.report.run_page import write_report


def run(folder):
    made_up_run = MadeUpRun(folder / "exp")
    made_up_run.check()
    made_up_run.histories()
    made_up_run.decode("mono", splits=("dev",))
    made_up_run.gains()
    made_up_run.stages()


READERS = {
    "page": Reader(run, lambda folder: write_report(folder / "exp", folder / "report.html")),
    "runs": Reader(run, lambda folder: table_lines(find_runs(folder))),
}
