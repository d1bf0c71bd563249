"""One algorithm, one file: read by the generator, never executed."""
