"""What broker and client both speak: errors, record batches and the wire protocol, as bytes in and values out.

Nothing here does I/O or depends on the other two packages.
"""

__version__ = "0.2.0.dev0"
"""The version of warmlog, here only: the distribution, the handshake and `warmlog --version` take it from here."""
