"""`warmlog topic`: one module for each kind of command on topics."""
