"""What an algorithm is, and a plan for running it: frozen data, no other package of optgen."""
