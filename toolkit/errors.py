"""The base class of errors that the user can fix."""


class ToolkitError(Exception):
    """An error in the user's data, configuration or machine.

    Each package derives one class per kind of error. The message names the utterance or the file
    and the next command to try; command lines print it without a traceback and exit with 1.
    """
