"""The documentation's site: pages that are generated from specs, classes and results."""
