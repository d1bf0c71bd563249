"""Compose a spec and modifiers: read their syntax trees, and write one spec."""
