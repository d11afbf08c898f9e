"""YAML restricted to plain data: no objects, no references, no repeated keys."""

import re
from pathlib import Path
from typing import Any

import yaml

from toolkit.storage.reading import regular

_OTHER_BASE = re.compile(r"[-+]?0[0-9_]+|[^:]*:.*")
"""Numbers that YAML reads as octal, such as 010, or in base 60, such as 1:30."""


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases, with which a short file can expand to gigabytes, and repeated keys.

    So it does numbers that look decimal and are not.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(
                None, None, f"`*{event.anchor}`: write the value out, it cannot be referred to",
                event.start_mark,
            )  # fmt: skip
        return super().compose_node(parent, index)

    def construct_number(self, node: Any) -> Any:
        if _OTHER_BASE.fullmatch(node.value):
            raise yaml.constructor.ConstructorError(
                None, None, f"`{node.value[:80]}` is not decimal in YAML: write a plain number, "
                "or the text in quotation marks", node.start_mark,
            )  # fmt: skip
        if node.tag.endswith(":int"):
            return super().construct_yaml_int(node)
        return super().construct_yaml_float(node)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"`{key.value[:80]}` is given twice", key.start_mark
                )
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep)


for _tag in ("int", "float"):
    _PlainLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _PlainLoader.construct_number)


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
