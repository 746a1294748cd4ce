"""The commands of `warmlog group`."""
