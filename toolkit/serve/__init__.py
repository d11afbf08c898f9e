"""Live recognition for browsers and programs on this machine: a web page and a WebSocket."""
