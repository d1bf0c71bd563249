"""MuonClip, as Kimi K2's report has it: Muon with steps of AdamW's size, and the clip of attention.

A step with `max_logits=[…]` clips query and key weights. Each entry is None or a tensor in the
parameter's shape. It holds for each element the largest attention logit of its head before softmax:
`logits.repeat_interleave(head_dim)[:, None].expand_as(weight)`. Keys and queries share the clip, so
`clip_power` is 0.5. For rotary queries, whose keys are shared by heads, set it to 1.
"""

from optgen.spec import (
    cols,
    given,
    hyper,
    maximum,
    ndim,
    optimizer,
    orthogonalize,
    require,
    rows,
    sqrt,
    state,
    where,
)


@optimizer(paper="https://arxiv.org/abs/2507.20534")
def MuonClip(
    p,
    g,
    max_logits=given("max_logits"),
    /,
    b=state("momentum_buffer"),
    *,
    lr=hyper(2e-4, ge=0),
    momentum=hyper(
        0.95, ge=0, lt=1, about="Fraction of the last update that is kept in the next one"
    ),
    weight_decay=hyper(0.1, ge=0),
    ns_coefficients=hyper((3.4445, -4.7750, 2.0315)),
    ns_steps=hyper(5, ge=1, lt=100, whole=True),
    eps=hyper(1e-30, ge=0, about="The least norm that the momentum is divided by"),
    tau=hyper(100.0, gt=0, about="Largest attention logit that is not clipped"),
    clip_power=hyper(0.5, ge=0, le=1, about="Share of this weight in the clip"),
):
    """Muon, whose query and key weights shrink when attention logits explode (Kimi Team, 2025)."""
    require(ndim(p) == 2, "MuonClip takes matrices, not the shape {shape}")

    b = momentum * b + g
    o = orthogonalize(b, ns_coefficients, ns_steps, eps)
    p = p - lr * weight_decay * p
    p = p - lr * 0.2 * sqrt(maximum(rows(p), cols(p))) * o
    if given(max_logits):
        p = p * where(max_logits > tau, tau / max_logits, 1) ** clip_power
