"""Faults of a store: transient or permanent, and messages without credentials."""

import errno
import re

PERMANENT_ERRORS = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    TypeError,
    ImportError,
)
PERMANENT_NAMES = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "ParamValidationError",
    "NoRegionError",
}
PERMANENT_ERRNOS = {errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG}

SECRET = re.compile(
    r"(?P<user>(?<=://)[^/@\s'\"]+(?=@))"
    r"|(?P<field>\b(?:X-Amz-[A-Za-z-]+|AWSAccessKeyId|Signature|sig|[\w-]*(?:secret|token|password|"
    r"credential|authorization|access_?key)[\w-]*)[\"']?\s*[=:]\s*)(?P<value>[\"']?[^&\s,'\"]+)"
    r"|(?P<id>\b(?:AKIA|ASIA)[0-9A-Z]{12,}\b)",
    re.IGNORECASE,
)


def is_transient(error: BaseException) -> bool:
    """Tell whether a store's failure is transient, so that another try may succeed.

    Server errors, time-outs, resets and truncated bodies are raised as a dozen classes of several
    libraries, so every error is transient unless it is known to be permanent.
    """
    if isinstance(error, PERMANENT_ERRORS) or type(error).__name__ in PERMANENT_NAMES:
        return False
    return not (isinstance(error, OSError) and error.errno in PERMANENT_ERRNOS)


def redact(text: str) -> str:
    """Mask user names, keys, tokens and signatures in a message or URL."""
    return SECRET.sub(lambda match: (match["field"] or "") + "***", text)
