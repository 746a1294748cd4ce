"""What `warmlog index trace` shows: the pages that searches visit (trace), as text (text) and as PNG (picture)."""
