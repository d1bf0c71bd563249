"""Running means of a model's weights, which `optgen.optim.swa_utils` keeps."""

from optgen.spec import elementwise, hyper, lerp


@elementwise
def ema(average, param, /, *, decay=hyper(0.999, ge=0, le=1)):
    """Exponential moving average: the further back a value lies, the smaller its weight."""
    average = lerp(average, param, 1 - decay)


@elementwise
def swa(average, param, /, *, count=hyper(0, tensor="number", about="Number of averaged values")):
    """Stochastic weight averaging: all values have equal weights (Izmailov et al., 2018)."""
    average = lerp(average, param, 1 / (count + 1))
