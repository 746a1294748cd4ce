"""One broker in one process: assemble its parts, serve, stop; handle repeated crashes."""
