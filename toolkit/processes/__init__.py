"""The processes of a run: ranks started by torchrun, worker pools, threads and the device."""
