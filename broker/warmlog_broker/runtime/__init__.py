"""The process: clock, threads, tasks, limits of the system, systemd."""
