"""CTC decoding: searches with and without a dictionary, on the same posteriors (A21)."""

from toolkit.kernel_cache import use_kernel_cache

use_kernel_cache()
