"""What `optgen build` writes: a folder for each algorithm. The classes are public in optgen.optim."""
