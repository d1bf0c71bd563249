"""The output of `optgen build`: a folder for each algorithm; optgen.optim has the classes."""
