"""Typed settings: nested dataclasses, overrides from the command line and from YAML files."""
