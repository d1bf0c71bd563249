"""Test on CPU tensors what kernels read: the table, hyperparameters, copied streams, scalars."""

import math
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen.runtime.fused_triton import table
from optgen.runtime.fused_triton.bucket import GroupSubset
from optgen.runtime.fused_triton.launch_options import options
from optgen.runtime.fused_triton.table import HEADER, Hypers, Table, flatten
from optgen.runtime.rule import Rule
from optgen.runtime.state.checkpoint import portable_state_dict
from optgen.runtime.state.scalars import copy_scalars_to_cpu, move_scalars_to_param_devices
from optgen.runtime.tensors.layout import copy_like, is_dense, same_layout, streams_to_copy

CPU = torch.device("cpu")


def table_of(numels: list[int], streams: int = 2, fresh: list[list[bool]] | None = None) -> Table:
    """Return the table of tensors with these numbers of elements, in blocks of 1024."""
    counts = [-(-numel // 1024) for numel in numels]
    return Table(numels, counts, [0] * len(numels), fresh or [], streams, CPU, None)


def test_the_table_maps_blocks_to_tensors() -> None:
    launch_table = table_of([0, 1, 1024, 1025, 0, 3000])
    assert launch_table.blocks == 0 + 1 + 1 + 2 + 0 + 3
    assert launch_table.tensor_of_block.tolist() == [1, 2, 3, 3, 5, 5, 5]
    assert launch_table.memory[0].tolist() == [0, 1, 1024, 1025, 0, 3000]
    assert launch_table.memory[1].tolist() == [0, 0, 1, 2, 4, 4]


def test_tensors_without_elements_have_no_blocks() -> None:
    assert table_of([0, 0]).blocks == 0


def test_element_counts_past_32_bits_fit_the_table() -> None:
    launch_table = table_of([2**33 + 1])
    assert launch_table.memory[0].tolist() == [2**33 + 1]
    assert launch_table.blocks == 2**23 + 1


def test_rows_of_fresh_flags_follow_the_addresses() -> None:
    launch_table = table_of([5, 5], streams=3, fresh=[[True, False]])
    assert launch_table.memory.shape == (HEADER + 3 + 1, 2)
    assert launch_table.memory[-1].tolist() == [1, 0]


def test_absent_streams_have_the_address_zero() -> None:
    tensors = [torch.ones(5), torch.ones(5)]
    launch_table = table_of([5, 5])
    launch_table.write_addresses([tensors, []])
    assert launch_table.memory[HEADER].tolist() == [t.data_ptr() for t in tensors]
    assert launch_table.memory[HEADER + 1].tolist() == [0, 0]


class Uploads(list[tuple[int, ...]]):
    """Stand-in for `upload` that lists the shapes of the uploaded tensors."""

    def __call__(self, target: Tensor, values: Any, memory: Any) -> None:
        self.append(tuple(target.shape))
        target.copy_(torch.frombuffer(values, dtype=target.dtype).view(target.shape))


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> Uploads:
    upload = Uploads()
    monkeypatch.setattr(table, "upload", upload)
    return upload


def test_hyperparameters_are_uploaded_when_they_change(uploads: Uploads) -> None:
    hypers = Hypers(1, 3, CPU, None)
    hypers.set([0.1, float("nan"), True])
    hypers.set([0.1, float("nan"), True])
    assert uploads == [(1, 3)]
    hypers.set([0.2, float("nan"), False])
    assert uploads == [(1, 3)] * 2
    assert hypers.values[0, 0].item() == 0.2


def test_a_tensor_hyperparameter_is_read_at_every_step(uploads: Uploads) -> None:
    lr = torch.tensor([0.5])
    hypers = Hypers(1, 2, CPU, None)
    hypers.set([lr, 1.0])
    lr.fill_(0.25)
    hypers.set([lr, 1.0])
    assert hypers.values.tolist() == [[0.25, 1.0]]
    assert uploads == [(1, 2)]
    hypers.set([0.0, 1.0])  # no value of the earlier tensor may stay
    assert hypers.values.tolist() == [[0.0, 1.0]]


def test_hyperparameters_of_a_group_are_flattened_in_the_order_of_the_rule() -> None:
    group = {"lr": 0.1, "betas": (0.9, 0.999), "clip": None, "amsgrad": True}
    values = flatten(group, Rule("made", (), ("amsgrad", "betas", "clip", "lr")))
    assert values[:3] == [True, 0.9, 0.999]
    assert math.isnan(values[3])  # None
    assert values[4] == 0.1


def test_an_upload_copies_its_numbers() -> None:
    numbers = array("q", [1, 2, 3])
    target = torch.empty(3, dtype=torch.int64)
    table.upload(target, numbers, None)
    numbers[0] = 7
    assert target.tolist() == [1, 2, 3]


def test_a_subset_picks_tensors_in_order() -> None:
    tensors = [torch.tensor(float(i)) for i in range(4)]
    assert GroupSubset(0, (0, 1, 2, 3)).pick(tensors) is tensors
    assert list(GroupSubset(0, (1,)).pick(tensors)) == tensors[1:2]
    assert list(GroupSubset(0, (0, 2)).pick(tensors)) == [tensors[0], tensors[2]]
    assert list(GroupSubset(0, (0, 2)).pick([])) == []


@pytest.mark.parametrize(
    ("dtypes", "vector", "block"),
    [
        ((torch.float32,) * 4, 4, 1024),
        ((torch.bfloat16, torch.bfloat16, None), 8, 1024),
        ((torch.bfloat16, torch.bfloat16, torch.float32), 4, 1024),
        ((torch.float64,) * 2, 2, 512),
    ],
)
def test_a_memory_access_has_sixteen_bytes(dtypes: Any, vector: int, block: int) -> None:
    constants = options(dtypes, is_amd=False)
    assert (constants["VECTOR"], constants["BLOCK"]) == (vector, block)


def tensors_by_layout() -> dict[str, Tensor]:
    return {
        "contiguous": torch.ones(4, 6),
        "transposed": torch.ones(6, 4).t(),
        "holes": torch.ones(4, 12)[:, ::2],
        "expanded": torch.ones(4, 1).expand(4, 6),
        "channels last": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "empty": torch.ones(0, 6),
        "0-dim": torch.ones(()),
    }


@pytest.mark.parametrize("name", tensors_by_layout())
def test_tensors_with_holes_or_expanded_axes_are_not_dense(name: str) -> None:
    assert is_dense(tensors_by_layout()[name]) == (name not in ("holes", "expanded"))


def test_axes_of_size_one_do_not_change_a_layout() -> None:
    kernel = torch.ones(8, 3, 1, 1)
    assert same_layout(kernel.to(memory_format=torch.channels_last), kernel)


def test_only_tensors_of_another_layout_are_copied() -> None:
    tensors = tensors_by_layout()
    plain, transposed, holes = tensors["contiguous"], tensors["transposed"], tensors["holes"]
    assert streams_to_copy([plain, plain, plain]) == []
    assert streams_to_copy([transposed, transposed]) == []
    assert streams_to_copy([plain, transposed, plain]) == [1]
    assert streams_to_copy([transposed, plain, transposed]) == [1]
    assert streams_to_copy([holes, plain, transposed]) == [0, 2]


@pytest.mark.parametrize("name", tensors_by_layout())
def test_a_copy_has_the_layout_of_its_parameter(name: str) -> None:
    param = tensors_by_layout()[name]
    grad = torch.randn(param.shape)
    copy = copy_like(grad, param)
    assert torch.equal(copy, grad)
    assert copy.is_contiguous() if name in ("holes", "expanded") else same_layout(copy, param)


def test_scalars_on_the_right_device_are_not_copied() -> None:
    state: dict[str, Any] = {"step": torch.tensor(3.0)}
    step = state["step"]
    assert move_scalars_to_param_devices([state], "step", [torch.ones(2)]) == [step]
    assert state["step"] is step


def test_scalars_move_to_the_device_of_their_parameter() -> None:
    states: list[dict[str, Any]] = [{"step": torch.tensor(float(i))} for i in range(3)]
    first = states[0]["step"]
    params = [torch.ones(2), *(torch.ones(2, device="meta") for _ in range(2))]
    found = move_scalars_to_param_devices(states, "step", params)
    assert [t.device.type for t in found] == ["cpu", "meta", "meta"]
    assert found[0] is first
    assert [state["step"] for state in states] == found
    assert found[1].shape == ()


def test_a_checkpoint_does_not_copy_cpu_scalars() -> None:
    packed = {0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(2)}}
    groups = [{"params": [0, 1], "fused": None, "capturable": False}]
    assert copy_scalars_to_cpu(packed, groups, ["step"])[0]["step"] is packed[0]["step"]


@pytest.mark.parametrize(
    ("scalar_device", "group"),
    [("cpu", {"fused": True}), ("cpu", {"capturable": True}), ("param", {"fused": None})],
)
def test_a_checkpoint_keeps_scalars_on_the_parameters_device_where_torch_does(
    scalar_device: str, group: dict[str, Any]
) -> None:
    optimizer: Any = SimpleNamespace(rule=Rule("r", (), (), scalar_device=scalar_device))
    packed: dict[str, Any] = {"state": {0: {"step": torch.ones((), device="meta")}}}
    packed["param_groups"] = [{"params": [0], **group}]

    assert portable_state_dict(optimizer, packed)["state"][0]["step"].is_meta
