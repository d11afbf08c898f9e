"""Scoring: word and character error rates, alignments, significance tests, results."""

from toolkit.kernel_cache import use_kernel_cache

use_kernel_cache()
