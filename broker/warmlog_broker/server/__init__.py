"""One broker in one process: assemble its parts, serve, stop; judge the starts that crashed."""
