"""What has been imported stays, and need not be looked through again and again."""

import gc


def keep_imports() -> None:
    """Let no garbage collection go through the objects that there are now.

    A recipe's imports make a quarter of a million of them. Going through them takes 0.2 s, and
    every process does it several times before it ends. Workers share the memory of what was kept in
    the process from which they are forked, since nothing marks it any more.
    """
    gc.freeze()
