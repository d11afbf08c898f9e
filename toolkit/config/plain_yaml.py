"""YAML restricted to plain data: no objects, no references, no repeated keys."""

from pathlib import Path
from typing import Any

import yaml

from toolkit.storage.reading import regular


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases, with which a short file can expand to gigabytes, and repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(
                None, None, f"`*{event.anchor}`: write the value out, it cannot be referred to",
                event.start_mark,
            )  # fmt: skip
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"`{key.value[:80]}` is given twice", key.start_mark
                )
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Read a file of YAML (or JSON) in UTF-8.

    Raises:
      ValueError: it is not plain data; the message says where.
      OSError: it cannot be read.
    """
    try:
        return yaml.load(regular(path).read_text(encoding="utf-8-sig"), _PlainLoader)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, ArithmeticError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"not plain YAML: {what}") from error
