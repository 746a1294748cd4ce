"""`warmlog config`: settings of a broker, checked, shown and altered."""
