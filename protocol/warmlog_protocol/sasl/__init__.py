"""Authentication: the exchange of SCRAM, both sides of it, and what a broker stores of a password."""
