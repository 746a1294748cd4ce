"""Offset, time and transaction index, warm/cold search, and the warm keeper."""
