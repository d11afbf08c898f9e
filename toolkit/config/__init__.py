"""Typed settings: dataclasses, their conversion from text and from plain YAML."""
