"""What `optgen build` writes, a folder for each algorithm; optgen.optim has the classes."""
