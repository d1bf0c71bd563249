"""Define algorithms and plans as frozen data. This package imports no other package of optgen."""
