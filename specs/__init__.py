"""Specs of the catalogue, one algorithm per file. The generator reads them and never runs them."""
