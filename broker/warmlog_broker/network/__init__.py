"""Connections: sessions, back-pressure, deadlines, memory budgets. Independent of topics."""
