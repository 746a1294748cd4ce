"""The broker's settings and the places they come from."""
