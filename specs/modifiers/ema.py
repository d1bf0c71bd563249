from optgen.spec import hyper, lerp, modifier, state


@modifier(stage="observe")
def ema(p, /, average=state("ema", init="p"), *, ema_decay=hyper(0.999, ge=0, le=1)):
    """Average the weights exponentially (Polyak & Juditsky, 1992)."""
    average = lerp(average, p, 1 - ema_decay)
