"""Log lines of runs as the tests compare them."""

import re

TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S+ "


def untimed(text):
    """Take away the time that stands before each line where there is no terminal."""
    return re.sub(TIME, "", text, flags=re.MULTILINE)
