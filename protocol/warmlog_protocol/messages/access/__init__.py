"""Who may connect, and what principals may do."""
