"""Describes a survey in words, for the terminal and the README of the new recipe."""

from toolkit.new_corpus.survey import LONG_SECONDS, Survey


def describe(found: Survey) -> list[str]:
    """Return lines on size, splits and held-out data."""
    splits = ", ".join(
        f"{split} {_time(hours)} ({_count(found.speakers[split], 'speaker')})"
        for split, hours in found.hours.items()
    )
    lines = [f"{found.utterances} utterances in {found.corpus.root}", f"splits: {splits}"]
    if found.unnamed:
        if found.corpus.speakers == "auto":
            replacement = "stage 2 clusters their recordings into speakers"
        else:
            replacement = "the recording of an utterance counts as its speaker"
        lines.append(
            f"speakers: {found.unnamed} of {found.utterances} utterances name none; {replacement}"
        )
    if found.held_out:
        names = " and ".join(found.held_out)
        if found.corpus.hold_out == "speakers":
            lines.append(f"held out of train: {names}, by speaker")
        else:
            lines.append(
                f"held out of train: {names}, by utterance, as there are too few speakers, "
                "the corpus does not name them, or one has most of the speech: expect more "
                "errors on speakers outside the corpus"
            )
    if found.left_out:
        lines.append(f"not used: {', '.join(found.left_out)}")
    return lines


def cautions(found: Survey) -> list[str]:
    """Return warnings about the data, with the remedy."""
    lines = [f"caution: {fault}" for fault in found.faults.values()]
    if found.faults:
        lines.append("caution: stage 3 looks into the audio or features too, and lists all faults")
    if found.long:
        lines.append(
            f"caution: {_count(found.long, 'utterance')} of {LONG_SECONDS:g} s and more: cut long "
            "recordings at pauses (start and end columns, or segments), or training may not align"
        )
    if found.hours["train"] < 0.1:
        lines.append(
            f"caution: {_time(found.hours['train'])} to train on are enough to try the "
            "recipe, not for a recogniser; have half an hour at least"
        )
    return lines


def _time(hours: float) -> str:
    """Of less than a tenth of an hour minutes or, of less than a minute, seconds."""
    if hours >= 0.1 or hours == 0:
        return f"{hours:.2f} h"
    return f"{60 * hours:.1f} min" if 60 * hours >= 1 else f"{3600 * hours:.0f} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
