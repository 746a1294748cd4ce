"""What a replica of a partition decides, without I/O: record, role, what is committed, who leads, what is cut."""
