"""Offset, time and transaction index, warm/cold search, and the keeper of the warm section."""
