"""Comparison of log lines."""

import re

TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S+ "


def untimed(text):
    """Remove the time before each line of a log."""
    return re.sub(TIME, "", text, flags=re.MULTILINE)
