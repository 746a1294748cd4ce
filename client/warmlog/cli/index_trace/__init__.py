"""`warmlog index trace`: the pages that searches read (trace), as text (text) and as PNG (picture)."""
