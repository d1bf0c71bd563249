"""Modifiers that only `optgen.offload` composes with; they are not in the catalogue."""
