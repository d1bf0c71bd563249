"""The lists of tensors that every benchmark steps: their numbers of elements."""

RESNET50 = [9408, 64, 64] + [
    size
    for width, inner, blocks in ((256, 64, 3), (512, 128, 4), (1024, 256, 6), (2048, 512, 3))
    for _ in range(blocks)
    for size in (width * inner, inner, inner, inner * inner * 9, inner, inner, inner * width, width)
]
_LAYER = (768, 768, 768 * 2304, 2304, 768 * 768, 768, 768, 768, 768 * 3072, 3072, 3072 * 768, 768)
GPT2 = [50257 * 768, 1024 * 768, *_LAYER * 12]
LISTS = {
    "one of 25,000,000": [25_000_000],
    "one of 1,000,000": [1_000_000],
    "like ResNet-50": RESNET50,
    "like GPT-2 small": GPT2,
    "2,000 of 256": [256] * 2000,
}
