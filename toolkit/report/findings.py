"""The report's section on the findings of the data check."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from toolkit.report.folder import RunFolder

LISTED = 12
"""Most findings of one kind that are listed."""
SEVERITIES = ("error", "warning", "note")


def findings(run: RunFolder) -> str:
    """Return the findings of the check with remedies, the most severe first."""
    report = run.json("check/report.json")
    if not isinstance(report, dict):
        return ""
    kinds, found = report.get("kinds", {}), report.get("findings", [])
    counts = Counter(finding["kind"] for finding in found)
    excluded = Counter(finding["kind"] for finding in found if finding.get("excluded"))
    if not counts:
        return '<div class="box"><p>The check found no faults.</p></div>'
    order = sorted(
        (kind for kind in kinds if counts[kind]),
        key=lambda kind: (SEVERITIES.index(kinds[kind]["severity"]), -counts[kind]),
    )
    return "".join(
        _finding(kinds[kind], counts[kind], excluded[kind], [f for f in found if f["kind"] == kind])
        for kind in order
    )


def _finding(
    kind: Mapping[str, str], count: int, excluded: int, found: Sequence[Mapping[str, Any]]
) -> str:
    listed = "".join(
        f"<li><code>{escape(str(f['split']))} {escape(str(f['id']))}</code> "
        f"{escape(str(f['detail']))}</li>"
        for f in found[:LISTED]
    )
    more = f"<li>and {count - LISTED:,} more, in check/report.json</li>" if count > LISTED else ""
    out = f", {excluded:,} excluded" if excluded else ""
    severity = escape(kind["severity"])
    return (
        f'<details class="finding"><summary><span class="state is-{severity}">{severity}</span> '
        f"{escape(kind['title'])} <b>{count:,}</b>{out}</summary>"
        f"<p>Remedy: {escape(kind['fix'])}.</p><ul>{listed}{more}</ul></details>"
    )
