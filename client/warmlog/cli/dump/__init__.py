"""What `warmlog log dump` prints of each kind of file, in the words of Kafka's DumpLogSegments.

Each module turns one kind of file into lines of text; `findings` collects what is wrong with them. Files are only read:
they may be unwritable, damaged, or written to by a broker at this moment.
"""
