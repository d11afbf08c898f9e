"""Comparisons with limits of the machine and with other engines; not part of the wheel."""
