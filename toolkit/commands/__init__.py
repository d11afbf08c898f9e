"""The subcommands of `toolkit`, a module each; they import their libraries when called."""
