"""How time and memory of the stages grow with the data: `toolkit bench growth`."""
