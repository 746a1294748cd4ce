"""Topics, settings, directories, rights, quotas and users."""
