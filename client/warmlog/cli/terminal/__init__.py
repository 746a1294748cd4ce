"""Shared by the commands: option types, output, progress, exit codes."""
