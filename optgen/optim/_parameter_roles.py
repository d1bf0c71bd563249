"""Tell what each parameter of a model is for: a hidden matrix, an embedding, an output layer.

Modules say what they are, but no module says that it is the last one. A layer is an output layer if
the model declares it, or if no other layer takes its result. Blocks, which take and return the same
width, have no output layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

MATRIX, CONVOLUTION, BATCH, FUSED = "matrix", "convolution", "batch of matrices", "fused matrices"
EMBEDDING, TABLE, OUTPUT = "embedding", "table", "output layer"
DEPTHWISE, VECTOR = "depthwise convolution", "vector"
HIDDEN = (MATRIX, CONVOLUTION, BATCH, FUSED)
"""The roles of parameters that a rule for matrices is for."""

_TABLE = re.compile(
    r"(^|[._])(pos|positions?|positional|embed(ding)?s?|tokens?|tables?|wte|wpe|W_E)([._]|$)"
)
"""Names of parameters without a layer that are looked up or added, such as `cls_token`."""

_OUTPUT = re.compile(r"^((lm_|output_)?head|unembed(ding)?|W_U)$")
"""Names of parameters without a layer by which a model multiplies last."""

_BATCH_BIAS = re.compile(r"^b(\d+|_.*)?$")
"""Names of biases beside a batch of matrices, if they do not end with `bias`."""

_ELEMENTWISE = re.compile(r"(^|[._])log([._]|$)")
"""Names of parameters without a layer that are used element by element, such as Mamba's `A_log`."""

_WEIGHTS = {"weight", "weight_v", "weight_orig"}
"""Names of a layer's weight. Under two of them, hooks of torch keep what they compute it from."""

_DECLARATIONS = ("get_output_embeddings", "get_classifier")
"""Methods by which models of transformers and timm return their output layers."""

_SMALL_BLOCK = 3  # a module with so few layers may be a head, even if it is one of several


@dataclass(frozen=True)
class Role:
    """The use of a parameter, and the shape in which it is a matrix or a batch of them."""

    kind: str
    view: tuple[int, ...] | None = None  # None: its own shape


@dataclass(frozen=True, eq=False)
class _Layer:
    """A module that multiplies by its weight."""

    name: str
    module: nn.Module
    inputs: int
    outputs: int
    order: int  # its place among all modules


def parameter_roles(model: nn.Module) -> dict[str, Role]:
    """Return the role of each parameter of a model, also of frozen ones, by name."""
    return _Roles(model).by_parameter()


class _Roles:
    """The layers of a model, and what follows from them."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules = dict(model.named_modules())
        self._names = [*self._modules]
        self._order = {name: order for order, name in enumerate(self._names)}
        self._layers = {
            name: layer
            for name, module in self._modules.items()
            if (layer := _as_layer(name, module, self._order[name]))
        }
        self._tables = [module for module in self._modules.values() if _is_embedding(module)]

    def by_parameter(self) -> dict[str, Role]:
        """Return the roles by the names of the parameters."""
        table_ids = {id(module.weight) for module in self._tables}
        outputs = {layer.name for layer in self._output_layers}
        roles = {}
        for name, param in self._model.named_parameters():
            owner = self._owner(name)
            if id(param) in table_ids:
                roles[name] = Role(EMBEDDING)
            elif _count_long_axes(param) < 2:
                roles[name] = Role(VECTOR)
            elif owner in outputs:
                roles[name] = Role(OUTPUT, _layer_role(self._layers[owner].module, param).view)
            elif owner in self._layers:
                roles[name] = _layer_role(self._layers[owner].module, param)
            else:
                roles[name] = _free_role(name, param, self._modules.get(name.rpartition(".")[0]))
        return roles

    def _owner(self, param_name: str) -> str:
        """Return the name of the layer that a parameter belongs to; "?" if there is none.

        Parametrizations keep parameters in modules of their own, below the layer.
        """
        name = param_name.rpartition(".")[0].partition(".parametrizations.")[0]
        return name if name in self._layers else "?"

    @cached_property
    def _output_layers(self) -> list[_Layer]:
        """The layers whose results no other layer takes."""
        declared = [*self._declared()]
        outside = [layer for layer in self._layers.values() if not self._is_inside_block(layer)]
        open_layers = [layer for layer in outside if not self._is_followed(layer)]
        found = [layer for layer in open_layers if layer in declared or self._ends(layer)]
        if not found and not self._tables:
            # The size of a head may be that of a hidden layer, but no layer comes after the head.
            last = open_layers[-1:]
            found = [each for each in last if max(self._consumers(each), default=0) < each.order]
        return [*found, *(layer for layer in declared if layer not in found)]

    def _declared(self) -> Iterator[_Layer]:
        """Yield the layers that the model, or a part of it, calls its output layers."""
        for module in self._modules.values():
            for method in _DECLARATIONS:
                try:
                    result = getattr(module, method)()
                except (AttributeError, NotImplementedError, TypeError):
                    continue
                heads = result if isinstance(result, nn.ModuleList) else [result]
                yield from (
                    layer
                    for layer in self._layers.values()
                    if any(layer.module is head for head in heads)
                )

    def _ends(self, layer: _Layer) -> bool:
        """Tell whether no other layer takes the result of a layer, judged by sizes."""
        if self._is_last_of_sequence(layer):
            return True
        sizes = {table.weight.shape[-1] for table in self._tables}
        if layer.outputs not in sizes and layer.outputs in self._table_lengths:
            return True
        return not any(self._takes(order, layer) for order in self._consumers(layer))

    @cached_property
    def _table_lengths(self) -> set[int]:
        return {table.weight.shape[0] for table in self._tables}

    def _takes(self, order: int, layer: _Layer) -> bool:
        """Tell whether a consumer at this place may take a layer's result, not the model's input.

        A consumer before the layer takes the model's input, unless something makes its input: a
        layer before it, or a table anywhere.
        """
        if order > layer.order or self._is_inside_block_at(order):
            return True
        makers = (
            other.order
            for other in self._layers.values()
            if other is not layer and other.outputs == layer.outputs
        )
        is_looked_up = any(table.weight.shape[-1] == layer.outputs for table in self._tables)
        return is_looked_up or any(maker < order for maker in makers)

    def _consumers(self, layer: _Layer) -> Iterator[int]:
        """Yield the places of modules, other than a layer itself, with inputs of its size."""
        size = layer.outputs
        if size == 1:
            return
        for name, module in self._modules.items():
            order, other = self._order[name], self._layers.get(name)
            if module is layer.module or _is_embedding(module) or ".parametrizations." in name:
                continue
            if other is not None:
                flattens = isinstance(layer.module, _ConvNd) and not isinstance(module, _ConvNd)
                is_flat = flattens and order > layer.order and other.inputs % size == 0
                if other.inputs == size or is_flat:
                    yield order
            elif size in _input_sizes(module):
                # Parameters of a module with layers have no place among these layers.
                yield order if not [*module.children()] else len(self._names)

    def _is_last_of_sequence(self, layer: _Layer) -> bool:
        """Tell whether the whole model is a sequence that ends with a layer."""
        names = [*_ancestors(layer.name)]
        return all(_is_sequence(self._modules[name]) for name in names) and bool(names)

    def _is_followed(self, layer: _Layer) -> bool:
        """Tell whether a sequence hands a layer's result to another module with parameters."""
        child = layer.name
        for parent in _ancestors(layer.name):
            if _is_sequence(self._modules[parent]):
                # A layer may stand in a sequence twice, and `named_children` names it once.
                siblings = [*self._modules[parent]._modules.items()]
                names = [f"{parent}.{name}".lstrip(".") for name, _ in siblings]
                later = siblings[names.index(child) + 1 :]
                if any(
                    True for _, module in later if module is not None for _ in module.parameters()
                ):
                    return True
            child = parent
        return False

    def _is_inside_block(self, layer: _Layer) -> bool:
        return any(name in self._blocks for name in _ancestors(layer.name))

    def _is_inside_block_at(self, order: int) -> bool:
        name = self._names[order] if order < len(self._names) else ""
        return name in self._blocks or any(each in self._blocks for each in _ancestors(name))

    @cached_property
    def _blocks(self) -> set[str]:
        """The names of the modules that take and return the same width."""
        root = self._unwrapped_root()
        return {
            name
            for name, module in self._modules.items()
            if name.startswith(root) and name != root and self._is_block(name, module)
        }

    def _unwrapped_root(self) -> str:
        """Return the name of the model inside wrappers, such as DistributedDataParallel."""
        name = ""
        while len(children := [*self._modules[name].named_children()]) == 1:
            child = f"{name}.{children[0][0]}".lstrip(".")
            if child in self._layers or isinstance(self._modules[child], nn.ModuleList):
                break
            name = child
        return name

    def _is_block(self, name: str, module: nn.Module) -> bool:
        inside = [each for key, each in self._layers.items() if key.startswith(f"{name}.")]
        if not inside or _is_container(module):
            return False
        inputs, outputs = {each.inputs for each in inside}, {each.outputs for each in inside}
        if inside[0].inputs not in outputs:
            return False
        is_large = len(inside) > _SMALL_BLOCK and self._is_one_of_several(name, module)
        has_tables = any(map(_is_embedding, module.modules()))  # a model inside a model
        return is_large or (inside[-1].outputs in inputs and not has_tables)

    def _is_one_of_several(self, name: str, module: nn.Module) -> bool:
        parent = self._modules[name.rpartition(".")[0]]
        siblings = [child for child in parent.children() if type(child) is type(module)]
        return isinstance(parent, nn.ModuleList) or len(siblings) > 1


def _as_layer(name: str, module: nn.Module, order: int) -> _Layer | None:
    """Return a module that multiplies by its weight as a layer; None for all others."""
    if isinstance(module, _ConvNd):
        return _Layer(name, module, module.in_channels, module.out_channels, order)
    own_names = {key for key, _ in module.named_parameters(recurse=False)}
    is_parametrized = "weight" in getattr(module, "parametrizations", ())
    if _is_embedding(module) or not (own_names & _WEIGHTS or is_parametrized):
        return None
    weight, bias = module.weight, getattr(module, "bias", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    outputs, inputs = weight.shape
    if isinstance(bias, Tensor) and bias.shape == (inputs,) and bias.shape != (outputs,):
        outputs, inputs = inputs, outputs  # `Conv1D` of transformers keeps the transpose
    return _Layer(name, module, inputs, outputs, order)


def _layer_role(module: nn.Module, weight: Tensor) -> Role:
    """Return the role of the weight of a layer inside a model."""
    if not isinstance(module, _ConvNd):
        return Role(MATRIX if weight.ndim == 2 else BATCH)
    rows = module.in_channels if isinstance(module, _ConvTransposeNd) else module.out_channels
    if module.groups == 1:
        return Role(CONVOLUTION, (rows, -1))
    if weight.shape[1] == 1:
        return Role(DEPTHWISE)
    return Role(CONVOLUTION, (module.groups, rows // module.groups, -1))


def _free_role(name: str, param: Tensor, owner: nn.Module | None) -> Role:
    """Return the role of a parameter that belongs to no layer."""
    key = name.rpartition(".")[2]
    if isinstance(owner, nn.MultiheadAttention) and key == "in_proj_weight":
        return Role(FUSED, (3, -1, param.shape[-1]))
    if key.endswith("bias") or (_BATCH_BIAS.search(key) and _has_batch(owner, param)):
        return Role(VECTOR)  # one for each matrix of a batch
    if _OUTPUT.search(key):
        return Role(OUTPUT)
    is_marked = getattr(param, "_no_weight_decay", False)
    if is_marked or param.shape[:1] == (1,) or _TABLE.search(key) or _ELEMENTWISE.search(key):
        return Role(TABLE)
    return Role(MATRIX if param.ndim == 2 else BATCH)


def _has_batch(owner: nn.Module | None, bias: Tensor) -> bool:
    """Tell whether a module has a batch with a matrix for each row of a bias."""
    siblings = [] if owner is None else owner.parameters(recurse=False)
    return any(each.ndim == 3 and each.shape[0] == bias.shape[0] for each in siblings)


def _is_embedding(module: Any) -> bool:
    """Tell whether a module looks rows of its weight up."""
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return True
    has_sizes = hasattr(module, "num_embeddings") and hasattr(module, "embedding_dim")
    return has_sizes and isinstance(getattr(module, "weight", None), Tensor)


def _is_sequence(module: nn.Module) -> bool:
    return type(module).forward is nn.Sequential.forward


def _is_container(module: nn.Module) -> bool:
    return _is_sequence(module) or isinstance(module, nn.ModuleList | nn.ModuleDict)


def _input_sizes(module: nn.Module) -> set[int]:
    """Return the sizes that inputs of a module may have, by its own parameters, except tables."""
    return {
        size
        for name, param in module.named_parameters(recurse=False)
        if _free_role(name, param, module).kind != TABLE
        for size in param.shape
    }


def _count_long_axes(param: Tensor) -> int:
    return sum(size > 1 for size in param.shape)


def _ancestors(name: str) -> Iterator[str]:
    """Yield the names of the modules around a module, the innermost first."""
    while name:
        name = name.rpartition(".")[0]
        yield name
