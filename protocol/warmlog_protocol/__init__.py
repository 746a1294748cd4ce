"""What broker and client both speak: errors, record batches and the wire protocol, as bytes in and values out.

Nothing here does I/O or depends on the other two packages.
"""
