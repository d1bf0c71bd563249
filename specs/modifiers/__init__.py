"""Modifiers of optimizers, one a file. `optgen.compose` reads them and never runs them."""
