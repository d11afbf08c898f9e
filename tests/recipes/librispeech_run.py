"""Helpers that read a finished run of the hybrid recipe."""

import json

STAGES = [*range(1, 36)]
GMMS = ("mono", "tri", "lda_mllt", "sat")
NETWORKS = ("lstm_ce", "lstm_smbr", "lstm_fmllr", "blstm", "chain", "chain_fbank")
SPEAKERS = {"dev": 6, "test": 4}


def errors_on_dev(finished):
    """Return the errors on dev by system and language model."""
    return {
        (row["system"], row["lm"]): row["ins"] + row["del"] + row["sub"]
        for row in finished.rows
        if row["split"] == "dev"
    }


def systems(root):
    """Return the bundle's descriptions of its systems, the best first."""
    return json.loads((root / "final/systems.json").read_text())


def by_role(root):
    """Return the bundle's system for each role."""
    return {role: system for system in systems(root) for role in system["roles"]}


def streaming(finished):
    return by_role(finished.root)["stream"]


def table_of(rows, output, mark):
    """Return the output of the last stage, which ends with the table of results."""
    table = output[output.index(f"{mark} 35 ") :]
    for row in rows:
        named = {row["system"], row["split"], row["lm"]}
        line = next(line for line in table.splitlines() if named <= {*line.split()})
        assert f"{row['wer']:.2f}" in line
    return table
