"""`warmlog log dump`: the content of each kind of file, in the words of Kafka's DumpLogSegments.

Each module turns one kind of file into lines of text; `findings` collects contradictions and damage. Files are only
read: they may be read-only, damaged, or in use by a broker.
"""
