"""Small models with the layouts of real ones; only their modules matter, so none has a forward."""

from __future__ import annotations

import warnings
from collections import OrderedDict

import torch
from torch import nn

WIDTH, VOCABULARY, POSITIONS, EXPERTS = 16, 64, 32, 8


class Attention(nn.Module):
    def __init__(self, key_width: int = WIDTH) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, key_width)
        self.v, self.o = nn.Linear(WIDTH, key_width), nn.Linear(WIDTH, WIDTH)


class Block(nn.Module):
    """A block of attention with few keys, and of a gated network that is as wide as the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(4)
        self.gate_up, self.down = nn.Linear(WIDTH, 128), nn.Linear(64, WIDTH)


class GPT(nn.Module):
    """The table of positions comes before the tokens; the head is tied, padded or neither."""

    def __init__(self, tied: bool = False, padded: int = 0, layers: int = 2) -> None:
        super().__init__()
        self.wpe, self.wte = nn.Embedding(POSITIONS, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(layers))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY + padded, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight


class FusedBlock(nn.Module):
    """GPT-2's block; its layers keep transposed weights, with a bias that tells."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = Conv1D(WIDTH, 3 * WIDTH), Conv1D(WIDTH, WIDTH)
        self.c_fc, self.c_out = Conv1D(WIDTH, 4 * WIDTH), Conv1D(4 * WIDTH, WIDTH)


class Conv1D(nn.Module):
    """The linear layer of transformers' GPT-2."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))


class FusedGPT(nn.Module):
    """nanoGPT's layout, with a head that comes before the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.transformer = nn.ModuleDict(
            {
                "wpe": nn.Embedding(POSITIONS, WIDTH),
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "h": nn.ModuleList([FusedBlock(), FusedBlock()]),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )


class WithValueHead(nn.Module):
    """A language model for reinforcement learning; its value head has a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.pretrained_model = GPT()
        self.v_head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))


class BERT(nn.Module):
    """Token, position and type embeddings, a pooler, and two heads whose weights are not tied."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList([Block(), Block()])
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.cls = nn.Module()
        self.cls.transform, self.cls.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.cls.decoder = nn.Linear(WIDTH, VOCABULARY)
        self.cls.seq_relationship = nn.Linear(WIDTH, 2)


class DecoderBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attention, self.cross_attention = Attention(), Attention()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)


class Whisper(nn.Module):
    """An encoder with two convolutions, a decoder, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Module(), nn.Module()
        self.encoder.conv1 = nn.Conv1d(80, WIDTH, 3)
        self.encoder.conv2 = nn.Conv1d(WIDTH, WIDTH, 3, stride=2)
        self.encoder.embed_positions = nn.Embedding(1500, WIDTH)
        self.encoder.layers = nn.ModuleList([Block(), Block()])
        self.decoder.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.decoder.embed_positions = nn.Parameter(torch.randn(POSITIONS, WIDTH))
        self.decoder.layers = nn.ModuleList([DecoderBlock(), DecoderBlock()])
        self.proj_out = nn.Linear(WIDTH, VOCABULARY, bias=False)


class ViTBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )


class ViT(nn.Module):
    """A convolution of patches, a token and a table of positions, and a classifier first."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, classes)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, WIDTH))
        self.logit_scale = nn.Parameter(torch.tensor(1.0))
        self.patch_embed = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.blocks = nn.Sequential(ViTBlock(), ViTBlock())


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, 4 * WIDTH, WIDTH))
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, 4 * WIDTH))
        self.down_bias = nn.Parameter(torch.zeros(EXPERTS, WIDTH))


class MoEBlock(nn.Module):
    """A block whose last layer is the gate of a shared expert, with one result."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.experts = Attention(4), Experts()
        self.router, self.shared_gate = nn.Linear(WIDTH, EXPERTS), nn.Linear(WIDTH, 2)


class MoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([MoEBlock(), MoEBlock()])
        self.output = nn.Linear(WIDTH, VOCABULARY)


class MusicGen(nn.Module):
    """Several codebooks, each with an embedding and a head that is as long as the width."""

    def __init__(self, codes: int = 24) -> None:
        super().__init__()
        self.embed_tokens = nn.ModuleList(nn.Embedding(codes + 1, WIDTH) for _ in range(4))
        self.layers = nn.ModuleList([Block(), Block()])
        self.lm_heads = nn.ModuleList(nn.Linear(WIDTH, codes, bias=False) for _ in range(4))

    def get_output_embeddings(self) -> nn.ModuleList:
        return self.lm_heads


class MambaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        inner = 2 * WIDTH
        self.A_log, self.D = nn.Parameter(torch.randn(inner, 8)), nn.Parameter(torch.ones(inner))
        self.in_proj = nn.Linear(WIDTH, 2 * inner)
        self.conv1d = nn.Conv1d(inner, inner, 4, groups=inner)
        self.x_proj, self.dt_proj = nn.Linear(inner, 1 + 16), nn.Linear(1, inner)
        self.out_proj = nn.Linear(inner, WIDTH)


class Mamba(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([MambaBlock(), MambaBlock()])
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)


class LoRALinear(nn.Module):
    """A frozen layer with a trainable product of two thin matrices beside it."""

    def __init__(self, base_layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict(
            {"default": nn.Linear(base_layer.in_features, rank, bias=False)}
        )
        self.lora_B = nn.ModuleDict(
            {"default": nn.Linear(rank, base_layer.out_features, bias=False)}
        )


def lora_gpt() -> nn.Module:
    """Return a frozen GPT with adapters on two layers of each block, and on the head."""
    model = GPT().requires_grad_(False)
    for block in model.h:
        block.attention.q = LoRALinear(block.attention.q)
        block.attention.v = LoRALinear(block.attention.v)
    model.lm_head = LoRALinear(model.lm_head)
    return model


class QNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.q = nn.Linear(11, 32), nn.Linear(32, 32), nn.Linear(32, 2)


class ActorCritic(nn.Module):
    """An actor, and two critics of one class, whose last layers are heads."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
        self.critic1, self.critic2 = QNetwork(), QNetwork()


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        if inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
            )


class ResNet(nn.Module):
    """A residual network of two stages, with as many classes as its images have channels."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 8))
        self.layer2 = nn.Sequential(BasicBlock(8, 16), BasicBlock(16, 16))
        self.fc = nn.Linear(16, classes)


def unet() -> nn.Module:
    """Return an autoencoder, whose result has the size of its input."""
    return nn.ModuleDict(
        OrderedDict(
            conv_in=nn.Conv2d(3, 8, 3),
            down=nn.Conv2d(8, 16, 3, stride=2),
            up=nn.ConvTranspose2d(16, 8, 2, stride=2),
            conv_out=nn.Conv2d(8, 3, 3),
        )
    )


class SpeechModel(nn.Module):
    """A model whose convolution is normalized, and whose characters are as many as its width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(1, WIDTH, 3), dim=2)
        self.layers = nn.ModuleList([Block(), Block()])
        self.lm_head = nn.Linear(WIDTH, WIDTH)


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(VOCABULARY, WIDTH), nn.LSTM(WIDTH, 24)
        self.decoder = nn.Linear(24, VOCABULARY)


class RawParameters(nn.Module):
    """A transformer whose tables and head are parameters without modules, as in short scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = (nn.Parameter(torch.randn(n, WIDTH)) for n in (VOCABULARY, POSITIONS))
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.lm_head = nn.Parameter(torch.randn(VOCABULARY, WIDTH))
        self.embed, self.unembed = nn.Module(), nn.Module()
        self.embed.W_E = nn.Parameter(torch.randn(VOCABULARY, WIDTH))  # names of TransformerLens
        self.unembed.W_U = nn.Parameter(torch.randn(WIDTH, VOCABULARY))


class TiedHeadFirst(nn.Module):
    """The head comes before the layers, and the table that it shares after them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.tokens.weight = self.head.weight


class NumberedExperts(nn.Module):
    """Experts whose biases are called `b1` and `b2`, beside a router without a module."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.w1 = nn.Parameter(torch.randn(EXPERTS, WIDTH, 32))
        self.w2 = nn.Parameter(torch.randn(EXPERTS, 32, WIDTH))
        self.b1 = nn.Parameter(torch.randn(EXPERTS, 32))
        self.b2 = nn.Parameter(torch.randn(EXPERTS, WIDTH))


def reparametrized() -> nn.Module:
    """Return layers whose weights hooks compute in each pass, from other parameters."""
    layers = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch deprecates it; models have it
        nn.utils.weight_norm(layers[0])  # type: ignore[no-untyped-call]
        nn.utils.weight_norm(layers[2])  # type: ignore[no-untyped-call]
    nn.utils.spectral_norm(layers[1])
    return nn.Sequential(*layers)


def layer_used_twice() -> nn.Module:
    """Return a sequence that ends with the layer with which it begins."""
    layer = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(layer, nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), layer)
