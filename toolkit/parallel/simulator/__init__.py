"""N workers in one process, under a virtual clock: what a method would do with more machines."""
