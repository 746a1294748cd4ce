"""The storage engine: synchronous files, no event loop and no sockets. ARCHITECTURE.md lists its rooms."""
