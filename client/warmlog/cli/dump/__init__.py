"""`warmlog log dump`: the content of each kind of file, in the words of Kafka's DumpLogSegments.

Modules turn files into lines of text as `view` says; `findings` collects contradictions and damage. Files are only
read: they may be read-only, damaged, or in use by a broker.
"""
