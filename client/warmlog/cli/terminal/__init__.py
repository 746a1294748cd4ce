"""What commands share: option types, output, progress, exit codes."""
