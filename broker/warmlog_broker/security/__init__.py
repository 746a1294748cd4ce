"""Who may connect: the users, and the authentication of one connection."""
