"""Connections: sessions, back-pressure, deadlines, memory budgets. Knows no topic."""
