"""The report's grids of weights that were tried on the development splits."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from toolkit.report.folder import RunFolder

CHOSEN = ("tuned.json", "weights.json")
"""Files that hold the chosen weights."""


def grids(run: RunFolder) -> str:
    """Return the grids of WER by the weights tuned on the development splits, by system."""
    paths = run.find("decode/*/grid.tsv") + run.find("decode/*/*/grid.tsv")
    paths.sort(key=lambda path: path.stat().st_mtime)
    found = [_grid(run, path) for path in paths]
    return f'<div class="grids">{"".join(found)}</div>' if any(found) else ""


def _grid(run: RunFolder, path: Path) -> str:
    """Return a table by the first two weights, with the lowest WER over any further ones."""
    rows = run.table(path)
    if not rows or "wer" not in rows[0]:
        return ""
    down, across = list(rows[0])[:2]
    measured = next(n for n, name in enumerate(rows[0]) if name in ("errors", "words", "wer"))
    further = list(rows[0])[2:measured]
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row[down], row[across]
        best[key] = min(best.get(key, float("inf")), float(row["wer"]))
    tuned = _chosen(run, path.parent)
    low, high = min(best.values()), max(best.values())
    columns = _ordered([row[across] for row in rows])
    lines = []
    for value in _ordered([row[down] for row in rows]):
        cells = []
        for other in columns:
            wer = best.get((value, other))
            if wer is None:
                cells.append("<td></td>")
                continue
            shade = 100 * (wer - low) / ((high - low) or 1.0)
            chosen = _same(value, tuned.get(down)) and _same(other, tuned.get(across))
            mark = ' class="chosen"' if chosen else ""
            cells.append(f'<td{mark} style="--shade:{shade:.0f}%">{wer:.2f}</td>')
        lines.append(f'<tr><th scope="row">{escape(value)}</th>{"".join(cells)}</tr>')
    title = run.name(path.parent).removeprefix("decode/")
    return _html(title, (down, across), further, columns, lines)


def _ordered(values: Sequence[str]) -> list[str]:
    """Return the different values, in rising order where all of them are numbers."""
    different = list(dict.fromkeys(values))
    try:
        return sorted(different, key=float)
    except ValueError:
        return different


def _chosen(run: RunFolder, folder: Path) -> Mapping[str, object]:
    """Return the chosen weights by name; those of a combination by system."""
    for name in CHOSEN:
        found = run.json(folder / name)
        if isinstance(found, dict):
            inside = found.get("weights")
            return found | inside if isinstance(inside, dict) else found
    return {}


def _same(text: str, value: object) -> bool:
    if isinstance(value, (int, float)):
        try:
            return abs(float(text) - value) < 1e-6
        except ValueError:
            return False
    return text == value


def _html(
    title: str,
    names: tuple[str, str],
    further: Sequence[str],
    columns: Sequence[str],
    lines: Sequence[str],
) -> str:
    head = "".join(f'<th scope="col">{escape(other)}</th>' for other in columns)
    down, across = (escape(name.replace("_", " ")) for name in names)
    others = escape(", ".join(name.replace("_", " ") for name in further))
    note = f'<p class="note">Lowest over {others}.</p>' if further else ""
    return (
        f'<div class="table heat"><h3>{escape(title)}</h3><div class="scroll" tabindex="0" '
        f'role="region" aria-label="Grid of {escape(title)}"><table><thead><tr><th></th>'
        f'<th class="group" colspan="{len(columns)}">{across}</th></tr>'
        f"<tr><th>{down}</th>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>{note}</div>"
    )
