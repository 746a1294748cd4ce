"""Records and their offsets."""
