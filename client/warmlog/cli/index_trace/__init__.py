"""`warmlog index trace`: the pages that searches read, as text (trace) and as PNG (picture)."""
