"""Optimizer state: its creation, checkpoints, placeholders and snapshots."""
