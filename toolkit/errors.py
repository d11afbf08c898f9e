"""The base of every error that a user can mend."""


class ToolkitError(Exception):
    """A fault in the user's data, configuration or machine.

    Each package derives one class per kind of fault. The message names the utterance or the file
    and the next command to try; command lines print it without a traceback and exit with 1.
    """
