"""Typed settings: nested dataclasses that the command line and YAML files can override."""
