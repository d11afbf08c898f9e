"""Output paths of steps: one for each configuration and input, so that runs never mix."""

import json
from collections.abc import Sequence

from toolkit.pipeline.objects import ObjectRef
from toolkit.pipeline.step import Partition, Step, config_plain
from toolkit.storage.digests import digest_bytes


def _content(ref: ObjectRef) -> str:
    """Return what tells an object from another: its digest, or its path and version."""
    return ref.digest or f"{ref.path}{ref.about.get('version', '')}"


def output_path(step: Step, partitions: Sequence[Partition], base: str) -> str:
    """Name a step's output by its configuration and the content of its inputs."""
    inputs = [
        [
            p.id,
            *((ref.size, _content(ref)) for ref in p.inputs),
        ]
        for p in partitions
    ]
    digest = digest_bytes(json.dumps([config_plain(step), inputs], sort_keys=True).encode())
    return f"{base.rstrip('/')}/{step.name}-{digest[:12]}"
