"""The offloaded optimizer: torch's interface over a pipeline that steps on the host."""

from __future__ import annotations

import time
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import ParamsT

from optgen.offloading.checkpoint import check_loaded, copy_loaded, loaded_by
from optgen.offloading.checks import check_any_on_device, check_gradient, check_param
from optgen.offloading.clipping import clip_factor, gradient_norm
from optgen.offloading.forward_waits import ForwardWaits
from optgen.offloading.host_memory import bytes_by_state, check_room, create_states
from optgen.offloading.host_rule import FACTOR, OffloadRule
from optgen.offloading.layout import Bucket, HostParam, divide
from optgen.offloading.options import Options
from optgen.offloading.pipeline import BucketWork, Pass, Pipeline, pinned_slots
from optgen.offloading.report import Report, make_report
from optgen.offloading.small_params import SmallParams
from optgen.offloading.worker import Worker
from optgen.runtime.batch.hyperparameters import HyperConverter
from optgen.runtime.fused_cpu.kernel_loader import load_kernel
from optgen.runtime.light_optimizer import LightOptimizer, with_step_hooks
from optgen.runtime.state.checkpoint import portable_state_dict
from optgen.runtime.tensors.dtensor import memory_version, to_local
from optgen.runtime.toolchain.dtype_variants import bits_of_dtypes

Group = dict[str, Any]


class OffloadedOptimizer(LightOptimizer):
    """A torch optimizer whose states are on the host, where a fused kernel takes its steps.

    `optgen.offload` makes it. `state` and `param_groups` are those of the composition of the rule
    with float32 weights: the states of parameters on the host are CPU tensors, and each parameter
    has a state "master". Read states after `synchronize()`.
    """

    grad_norm: float | None = None
    """The norm of all gradients of the last step before clipping; None without `clip_norm`."""

    def __init__(
        self, params: ParamsT, rule: OffloadRule, options: Options, hyper: dict[str, Any]
    ) -> None:
        self._rule, self._options, self._hyper = rule, options, hyper
        self.rule = rule.public.rule
        self._host_params: dict[Tensor, HostParam] = {}
        self._versions: dict[Tensor, int] = {}  # of the parameters, as the last step left them
        self._pass_number = 0
        self._needed_pass: dict[Tensor, int] = {}  # the last pass that steps each parameter
        self._waits: ForwardWaits | None = None
        self._pipeline: Pipeline | None = None
        self._public_converter = HyperConverter(rule.public)
        self._host_converter = HyperConverter(rule.host)
        example = rule.public([nn.Parameter(torch.zeros(1))], **hyper)
        super().__init__(params, example.defaults)
        all_params = [param for group in self.param_groups for param in group["params"]]
        check_any_on_device(all_params)
        for index in range(len(self.param_groups)):
            self._check_group(index)
        self._check_room(all_params)
        self._worker = Worker(options.time_limit)
        self._finalizer = weakref.finalize(self, self._worker.close)
        try:
            self._ring = pinned_slots(2 * options.slots, options.bucket_bytes)
            self._build()
            if options.hide == "forward":
                assert options.module is not None
                self._waits = ForwardWaits(options.module, self._wait_for)
        except BaseException:
            self.close()
            raise

    # Groups, and what is made for them.

    def add_param_group(self, param_group: Group) -> None:
        """Add a parameter group. Its states are allocated at once.

        Raises:
            ValueError: A parameter cannot be offloaded; the message says why.
            MemoryError: The host has no room for the states.
        """
        if self._pipeline is None:  # the constructor checks all groups together
            super().add_param_group(param_group)
            return
        self.synchronize()
        super().add_param_group(param_group)
        try:
            self._check_group(len(self.param_groups) - 1)
            self._check_room(self.param_groups[-1]["params"])
            self._build()
        except BaseException:
            for param in self.param_groups.pop()["params"]:
                self._host_params.pop(param, None)
                self.state.pop(param, None)
            self._build()
            raise

    def _check_group(self, index: int) -> None:
        group = self.param_groups[index]
        self._public_converter.check_arguments(group)
        if group.get("differentiable") or group.get("capturable"):
            raise ValueError("offload takes no differentiable or capturable steps")
        if group.get("view") is not None and not self.rule.elementwise:
            raise ValueError("offload takes no view= of groups: the rule sees whole parameters")
        if len(set(group["params"])) < len(group["params"]):
            raise ValueError(f"group {index} lists a parameter twice")
        group.update(self.rule.fixed_values(group["params"]))
        for param, name in zip(group["params"], self._names(index), strict=True):
            check_param(param, name)
            self._rule.public._check_param(param)

    def _names(self, index: int) -> list[str]:
        """Return the parameters' names in a group, or what stands for them in messages."""
        group = self.param_groups[index]
        numbers = range(len(group["params"]))
        return list(
            group.get("param_names") or [f"parameter {i} of group {index}" for i in numbers]
        )

    def _check_room(self, params: Sequence[Tensor]) -> None:
        chosen, states = set(params), dict[str, int]()
        for group in self.param_groups:
            on_host = [to_local(p) for p in group["params"] if p in chosen and self._is_large(p)]
            for key, count in bytes_by_state(self.rule, on_host, group).items():
                states[key] = states.get(key, 0) + count
        check_room(states, 0 if self._pipeline else self._options.ring_bytes)

    def _is_large(self, param: Tensor) -> bool:
        """Tell whether the host steps a parameter; by its whole size, so that ranks agree."""
        return param.numel() > self._options.keep_on_device and to_local(param).numel() > 0

    def _build(self) -> None:
        """Make all states that are missing, the buckets, the kernels and the pipeline."""
        rule = self.rule
        for index, group in enumerate(self.param_groups):
            for param, name in zip(group["params"], self._names(index), strict=True):
                if self._is_large(param) and param not in self._host_params:
                    self._host_params[param] = HostParam(param, name, index, self.state[param])
                    self._versions[param] = memory_version(param)
        owners = list(self._host_params.values())
        dtypes = {owner.local.dtype for owner in owners}
        kernel = load_kernel(self._rule.host, bits_of_dtypes({*dtypes, torch.float32}))
        may_split = rule.elementwise and not (rule.draws or rule.quantized_states)
        buckets = divide(owners, self._options.bucket_bytes, may_split)
        # The worker touches the memory first, so it is near the cores that step.
        self._worker.call(partial(self._create_states, owners))
        self._small = SmallParams(
            self._rule.device,
            self.param_groups,
            lambda param: param not in self._host_params,
            self.state,
            self._hyper,
        )
        self._present = self._present_states()
        self._buckets_of: dict[Tensor, list[int]] = {}
        for bucket in buckets:
            for piece in bucket.pieces:
                self._buckets_of.setdefault(piece.owner.param, []).append(bucket.index)
        self._pipeline = Pipeline(
            self._worker,
            kernel,
            buckets,
            self._ring,
            self._options.threads,
            len(self.param_groups),
            self._rule.host_reads_weights,
        )

    def _create_states(self, owners: Sequence[HostParam]) -> None:
        for owner in owners:
            self._worker.enter("creation of states", owner.name)
            create_states(self.rule, owner, self.param_groups, self.defaults)

    def _present_states(self) -> list[list[bool]]:
        """Return which states the options of each group ask for."""
        states = self.rule.states
        return [[state.is_present(group) for state in states] for group in self.param_groups]

    # Steps.

    @with_step_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step with the gradients of all parameters that have one.

        Everything that can be refused is refused before a gradient moves.

        Args:
            closure: Runs the model and its backward pass, and returns the loss.

        Returns:
            The closure's loss, or None.

        Raises:
            OffloadError: An earlier step failed on the host.
            RuntimeError: A gradient does not fit its parameter.
            ValueError: A hyperparameter is invalid.
        """
        self.synchronize()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            grads = self._checked_gradients()
            if grads:
                self._step(grads)
        return loss

    def _checked_gradients(self) -> dict[Tensor, Tensor]:
        """Return the gradients by their parameters, after all checks."""
        grads = {}
        for index, group in enumerate(self.param_groups):
            for param, name in zip(group["params"], self._names(index), strict=True):
                if param.grad is not None:
                    check_gradient(param, param.grad, name)
                    grads[param] = param.grad
        return grads

    def _step(self, grads: dict[Tensor, Tensor]) -> None:
        factor = 1.0
        if self._options.max_norm is not None:
            self.grad_norm = gradient_norm(list(grads.values()))
            factor = clip_factor(self.grad_norm, self._options.max_norm)
        hypers = self._packed_hypers(factor)
        if self._present_states() != self._present:
            self._build()  # an option asks for a state that was not there
        assert self._pipeline is not None
        works = [self._work(bucket, grads) for bucket in self._ordered_buckets()]
        self._small.step(self.param_groups, factor)
        self._submit([work for work in works if work.steps or work.refreshed], hypers)

    def _packed_hypers(self, factor: float) -> list[array[float]]:
        """Return the groups' hyperparameters as the kernel takes them; raise if one is invalid."""
        rule, pack = self._rule.host.rule, self._host_converter.row
        return [pack(rule.hyper_values({**group, FACTOR: factor})) for group in self.param_groups]

    def _work(self, bucket: Bucket, grads: dict[Tensor, Tensor]) -> BucketWork:
        """Return a bucket's part of a step."""
        owners = [piece.owner for piece in bucket.pieces]
        found = [grads.get(owner.param) for owner in owners]
        refreshed = [
            row
            for row, owner in enumerate(owners)
            if memory_version(owner.param) != self._versions[owner.param]
        ]
        gradients = [None if each is None else to_local(each.detach()) for each in found]
        return BucketWork(bucket, gradients, frozenset(refreshed))

    def _ordered_buckets(self) -> list[Bucket]:
        """Return the buckets in the order in which the next forward pass needs them."""
        assert self._pipeline is not None
        buckets = list(self._pipeline.buckets)
        if self._waits is None:
            return buckets
        order = self._waits.order()
        last = len(order)

        def first_use(bucket: Bucket) -> int:
            return min(order.get(piece.owner.param, last) for piece in bucket.pieces)

        return sorted(buckets, key=first_use)

    def _submit(self, works: Sequence[BucketWork], hypers: Sequence[array[float]]) -> None:
        """Queue a pass, and wait for as much of it as is not hidden."""
        pipeline = self._pipeline
        assert pipeline is not None
        ready = {}
        for device in pipeline.devices:
            event = ready[device] = torch.Event(device=device)
            event.record(torch.accelerator.current_stream(device))
        self._pass_number += 1
        versions = {g: g._version for work in works for g in work.gradients if g is not None}
        current = Pass(self._pass_number, works, hypers, ready, versions)
        stepped = {p.owner.param: None for work in works for p in work.bucket.pieces}
        increment_version([to_local(param) for param in stepped])
        for param in stepped:
            self._versions[param] = memory_version(param)
            self._needed_pass[param] = self._pass_number
        self._worker.submit(partial(pipeline.run, current))
        if self._waits is None:
            self.synchronize()

    def _wait_for(self, params: Iterable[Tensor] | None) -> None:
        """Let the device wait for the new weights of parameters; None stands for all."""
        pipeline = self._pipeline
        assert pipeline is not None
        if pipeline.ended_pass == self._pass_number:
            return
        if params is None:
            self.synchronize()
            return
        began = time.perf_counter()
        for param in params:
            for index in self._buckets_of.get(param, ()):
                number = self._needed_pass.get(param, 0)
                self._worker.wait(partial(pipeline.has_sent, index, number))
                event = pipeline.sent[index]
                event.wait(torch.accelerator.current_stream(pipeline.buckets[index].device))
        pipeline.timings.caller_wait_seconds += time.perf_counter() - began

    def synchronize(self) -> None:
        """Wait until all weights are on the device and all states are those of the last step.

        Raises:
            OffloadError: A step failed on the host.
        """
        began = time.perf_counter()
        self._worker.drain()
        if self._pipeline:
            self._pipeline.timings.caller_wait_seconds += time.perf_counter() - began

    def refresh_masters(self) -> None:
        """Let the float32 weights follow the parameters, wherever they no longer round to them.

        A step does so by itself for parameters that torch's version counter has seen change. Call
        this after other changes: through `.data`, or by another library.
        """
        self.synchronize()
        assert self._pipeline is not None
        works = [
            BucketWork(bucket, (), frozenset(range(len(bucket.pieces))))
            for bucket in self._pipeline.buckets
        ]
        with torch.no_grad():
            self._submit(works, ())

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return the state in torch's format, after the last step has ended.

        The tensors are those that later steps change, as in torch.
        """
        self.synchronize()
        return super().state_dict()

    def _portable_state_dict(self, packed: dict[str, Any]) -> dict[str, Any]:
        return portable_state_dict(self, packed)  # type: ignore[arg-type]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class, of the plain class, or of torch's.

        Float32 weights follow the parameters by value in the next step. If a load fails, it changes
        nothing. After an `OffloadError`, a load lets the optimizer step again.

        Raises:
            ValueError: The groups or the shapes of states differ.
        """
        if self._pipeline is not None:
            self._worker.recover()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            replacement = hook(self, state_dict)
            state_dict = state_dict if replacement is None else replacement
        loaded = loaded_by(
            self._rule.public, self.param_groups, self._host_params, self._hyper, state_dict
        )
        self._take_over(loaded)
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    @torch.no_grad()
    def _take_over(self, loaded: Any) -> None:
        """Copy the states of another optimizer, whose parameters are in the same order."""
        pairs = [
            (own, other)
            for own_group, group in zip(self.param_groups, loaded.param_groups, strict=True)
            for own, other in zip(own_group["params"], group["params"], strict=True)
        ]
        for own, other in pairs:
            if own in self._host_params:
                check_loaded(self._host_params[own], loaded.state.get(other, {}))
        for own_group, group in zip(self.param_groups, loaded.param_groups, strict=True):
            own_group.update({key: value for key, value in group.items() if key != "params"})
        fresh = self.rule.fresh
        for own, other in pairs:
            states = loaded.state.get(other, {})
            if own not in self._host_params:
                self.state[own] = states
                continue
            owner = self._host_params[own]
            if lacking := copy_loaded(owner, states, fresh):
                self._begin_anew(owner, lacking)
            self._versions[own] = -1  # the weights may have been loaded, too
        self._build()
        assert self._pipeline is not None
        self._pipeline.copy_cells()

    def _begin_anew(self, owner: HostParam, keys: Sequence[str]) -> None:
        """Give states that a checkpoint lacks the values that they begin with."""
        kept = {key: value for key, value in owner.states.items() if key not in keys}
        new = HostParam(owner.param, owner.name, owner.group_index, kept)
        create_states(self.rule, new, self.param_groups, self.defaults)
        for key in keys:
            to_local(owner.states[key]).copy_(to_local(new.states[key]))

    # The rest of the interface.

    def report(self) -> Report:
        """Return the bytes on each side, and what steps have taken, in milliseconds."""
        assert self._pipeline is not None
        small = set(self._small.params)
        return make_report(self.state, small, self._options.ring_bytes, self._pipeline.timings)

    def close(self) -> None:
        """End the worker's thread; later steps raise a RuntimeError. States can still be read."""
        if self._waits is not None:
            self._waits.remove()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def explained(self, first_index: int) -> list[str]:
        """Return what `optgen.explain` says about each group."""
        lines, threads = [], self._options.threads
        for index, group in enumerate(self.param_groups, first_index):
            on_host = sum(param in self._host_params for param in group["params"])
            on_device = len(group["params"]) - on_host
            parts = [
                f"{on_host} parameters by a fused C++ kernel on the host, in "
                f"{threads} {'thread' if threads == 1 else 'threads'}"
            ] * bool(on_host)
            parts += [f"{on_device} small ones on the device"] * bool(on_device)
            lines.append(f"group {index}: offloaded: {'; '.join(parts) or 'no parameters'}")
        return lines

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "an offloaded optimizer has a thread and pinned memory, and cannot be copied or "
            "pickled: save its state_dict()"
        )
