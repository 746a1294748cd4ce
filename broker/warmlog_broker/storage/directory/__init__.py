"""The small files of data and partition directories: checkpoints, markers, names, locks."""
