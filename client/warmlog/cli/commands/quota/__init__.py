"""`warmlog quota`: how much users and clients may do."""
