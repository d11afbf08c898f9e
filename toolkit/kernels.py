"""Provides numba's `njit`, with a cache folder of compiled kernels for each version of the sources.

numba recompiles a cached kernel when the kernel's own file changes, but not when only a kernel that
it calls, in another file, changes. So modules with kernels import `njit` from here: this module
chooses the cache folder before the first kernel is declared.
"""

import hashlib
import os
import sys
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"
MARK = b"njit"
"""Text that every source file with a kernel contains."""


def use_kernel_cache() -> None:
    """Choose the cache folder for this process and its children, unless `VARIABLE` is set.

    The folder is in the package, or in the user's cache if the package is not writable. If neither
    is writable, numba's own rule applies.
    """
    if VARIABLE in os.environ:
        return
    # The folder's name contains a digest of the sources, so old kernels are never loaded.
    package = Path(__file__).resolve().parent
    name = f"kernels-{kernels_digest(package)}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    for folder in (package / "__pycache__" / name, cache / "asr-recipe-toolkit" / name):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            os.environ[VARIABLE] = str(folder)
            # numba has already read the variable if another module imported numba.
            if "numba" in sys.modules:
                sys.modules["numba"].config.CACHE_DIR = str(folder)
            return


def kernels_digest(package: Path) -> str:
    """Return a hexadecimal digest of all source files with kernels below a folder."""
    hasher = hashlib.blake2b(digest_size=6)
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        if MARK in content:
            hasher.update(b"%s\0%s\0" % (os.fsencode(path.relative_to(package)), content))
    return hasher.hexdigest()


use_kernel_cache()

from numba import njit as njit  # noqa: E402
