"""The processes of a run: ranks, workers, threads, and which device to compute on."""
