"""Which failures of a store pass, and messages without credentials."""

import errno
import re

FINAL_ERRORS = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    TypeError,
    ImportError,
)
FINAL_NAMES = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "ParamValidationError",
    "NoRegionError",
}
FINAL_NUMBERS = {errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG}

SECRET = re.compile(
    r"(?P<user>(?<=://)[^/@\s'\"]+(?=@))"
    r"|(?P<field>\b(?:X-Amz-[A-Za-z-]+|AWSAccessKeyId|Signature|sig|[\w-]*(?:secret|token|password|"
    r"credential|authorization|access_?key)[\w-]*)[\"']?\s*[=:]\s*)(?P<value>[\"']?[^&\s,'\"]+)"
    r"|(?P<id>\b(?:AKIA|ASIA)[0-9A-Z]{12,}\b)",
    re.IGNORECASE,
)


def is_passing(error: BaseException) -> bool:
    """Tell whether a store's failure may be gone at the next try.

    Server errors, time-outs, resets and truncated bodies come as errors of a dozen classes of
    several libraries; so everything passes but what is known not to.
    """
    if isinstance(error, FINAL_ERRORS) or type(error).__name__ in FINAL_NAMES:
        return False
    return not (isinstance(error, OSError) and error.errno in FINAL_NUMBERS)


def redact(text: str) -> str:
    """Blank user names, keys, tokens and signatures in a message or URL."""
    return SECRET.sub(lambda match: (match["field"] or "") + "***", text)
