"""The offloaded optimizer: torch's interface over the machinery that steps on the host."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from optgen.offloading import checkpoint
from optgen.offloading.backward_steps import BackwardSteps
from optgen.offloading.buckets import HostParam, HostStates, Kind
from optgen.offloading.checks import (
    check_any_on_device,
    check_gradient,
    check_group,
    check_kind,
    check_param,
    check_sharding,
    check_states,
)
from optgen.offloading.clipping import clip_factor, gradient_norm
from optgen.offloading.host_memory import check_room, needed_bytes
from optgen.offloading.host_rule import FACTOR, OffloadRule
from optgen.offloading.host_side import HostSide
from optgen.offloading.host_states import OwnedStates
from optgen.offloading.options import Options
from optgen.offloading.pinned_ring import pinned_slots
from optgen.offloading.report import Report, group_lines, make_report
from optgen.offloading.small_params import SmallParams
from optgen.offloading.state_files import StateFiles
from optgen.offloading.submit_passes import Stepper
from optgen.offloading.worker import OffloadError, Worker
from optgen.runtime.batch.hyperparameters import HyperConverter
from optgen.runtime.light_optimizer import LightOptimizer, with_step_hooks
from optgen.runtime.state.checkpoint import portable_state_dict
from optgen.runtime.tensors.dtensor import to_local
from optgen.runtime.torch_private import called_to_init_state

Group = dict[str, Any]


class OffloadedOptimizer(LightOptimizer):
    """A torch optimizer whose states are on the host, where a fused kernel takes its steps.

    `optgen.offload` makes it. `state` and `param_groups` are those of the composition of the rule
    with float32 weights: the states of parameters on the host are CPU tensors, and each parameter
    has a state "master" after its first step. Read states after `synchronize()`.
    """

    grad_norm: float | None = None
    """The norm of all gradients of the last step before clipping; None without `clip_norm`."""

    def __init__(
        self, params: ParamsT, rule: OffloadRule, options: Options, hyper: dict[str, Any]
    ) -> None:
        self._rule, self._options, self._hyper = rule, options, hyper
        self.rule = rule.public.rule
        self._is_built = False
        self._public_converter = HyperConverter(rule.public)
        self._host_converter = HyperConverter(rule.host)
        example = rule.public([nn.Parameter(torch.zeros(1))], **hyper)
        super().__init__(params, example.defaults)
        files = StateFiles(options.state_dir) if options.state_dir is not None else None
        self._states = OwnedStates(self.rule, self.param_groups, self.defaults, files)
        self._host_params = self._states.owners
        all_params = [param for group in self.param_groups for param in group["params"]]
        check_any_on_device(all_params)
        for index in range(len(self.param_groups)):
            self._check_group(index)
        self._check_room(all_params)
        self._worker = Worker(options.time_limit)
        self._stepper = Stepper(self._worker)
        self._backward_steps = BackwardSteps(self._worker)
        self._finalizer = weakref.finalize(self, self._worker.close)
        try:
            self._slots = pinned_slots(2 * options.slots, options.bucket_bytes)
            self._build()
            if options.hide == "forward":
                assert options.module is not None
                self._stepper.hide_behind(options.module)
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
        if not self._is_built:  # the constructor checks all groups together
            super().add_param_group(param_group)
            return
        self._collect()
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
        check_group(group, index, self.rule)
        group.update(self.rule.fixed_values(group["params"]))
        for param, name in zip(group["params"], self._names(index), strict=True):
            check_param(param, name)
            check_sharding(param, name, self.rule)
            self._rule.public._check_param(param)

    def _names(self, index: int) -> list[str]:
        """Return the parameters' names in a group, or what stands for them in messages."""
        group, module = self.param_groups[index], self._options.module
        by_param = {p: name for name, p in module.named_parameters()} if module else {}
        numbered = [
            by_param.get(param, f"parameter {i} of group {index}")
            for i, param in enumerate(group["params"])
        ]
        return list(group.get("param_names") or numbered)

    def _check_room(self, params: Sequence[Tensor]) -> None:
        """Raise a MemoryError unless the host has room for the states of parameters."""
        chosen = set(params)
        on_host = [
            (group, [to_local(p) for p in group["params"] if p in chosen and self._is_large(p)])
            for group in self.param_groups
        ]
        rows = needed_bytes(self.rule, on_host, self._options)
        check_room(rows, 0 if self._is_built else self._options.ring_bytes)

    def _is_large(self, param: Tensor) -> bool:
        """Tell whether the host steps a parameter; by its whole size, so that ranks agree."""
        return param.numel() > self._options.keep_on_device and to_local(param).numel() > 0

    def _build(self) -> None:
        """Make all states that are missing, and what steps them."""
        for index, group in enumerate(self.param_groups):
            for param, name in zip(group["params"], self._names(index), strict=True):
                if self._is_large(param) and param not in self._host_params:
                    owner = HostParam(param, name, index, HostStates(), kind=Kind.of(param))
                    self._host_params[param] = owner
                    self._stepper.note_weights(param)
        self._states.make(self._worker)
        self._small = SmallParams(
            self._rule.device,
            self.param_groups,
            lambda param: param not in self._host_params,
            self._hyper,
        )
        for owner in self._host_params.values():
            check_states(self.rule, owner)
        self._used_states = self._states.to_use()
        if not self._is_built and any(state.eager for state in self.rule.states):
            self._states.show(self._host_params, self.state)  # as torch's Adagrad does
            self._small.init_state(self.state)
        if self._is_built:
            self._stepper.host.remove()
        host = self._stepper.host = HostSide(
            self._worker,
            self._slots,
            self._rule,
            self._options,
            self._host_params,
            len(self.param_groups),
            self._stepper.host if self._is_built else None,
        )
        if self._options.hide == "backward":
            assert host.collector is not None
            host.collector.before = weakref.WeakMethod(self._before_gradient)
        self._is_built = True

    def _build_if_changed(self) -> None:
        """Build anew if an option asks for another state, or a state has other memory."""
        if self._states.to_use() != self._used_states:
            self._stepper.synchronize()
            self._build()

    # Steps.

    @with_step_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step with the gradients of all parameters that have one.

        Everything that can be refused is refused before a parameter changes.

        Args:
            closure: Runs the model and its backward pass, and returns the loss.

        Returns:
            The closure's loss, or None.

        Raises:
            OffloadError: An earlier step failed on the host.
            RuntimeError: A gradient does not fit its parameter.
            ValueError: A hyperparameter is invalid.
        """
        self._worker.check()
        self._check_may_step()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            if not self.state and called_to_init_state():
                self._states.show_placeholders(self.state)
                self._small.init_state(self.state)
            else:
                self._step()
        return loss

    def _step(self) -> None:
        grads = self._checked_gradients()
        if (collector := self._stepper.host.collector) is not None:
            for param in [each for each in grads if each in self._host_params]:
                collector.take(param)  # of a parameter without a hook
                del grads[param]
            collector.flush()
        counts = self._stepper.host.gradient_counts
        if not (grads or counts):
            return
        stepped = [each for each in (*grads, *counts) if each in self._host_params]
        is_hidden = self._stepper.may_hide(self._host_params[param] for param in stepped)
        if collector is None:
            self.synchronize()
        else:
            self._stepper.wait_for_states(self._options.hide == "backward")
        factor = self._factor(grads, counts)
        hypers = self._packed_hypers(factor)
        self._build_if_changed()
        self._states.renew(self.state, self._stepper.has_changed)
        works = self._stepper.works(grads, counts)
        sends_only = self._options.hide == "backward"
        if sends_only:
            self._stepper.refuse_changed(works)
        self._small.step(self.param_groups, factor, self.state)
        self._states.show(stepped, self.state)
        if (collector := self._stepper.host.collector) is not None:
            collector.restart()
        self._stepper.submit(works, None if sends_only else hypers, is_hidden)

    def _collect(self) -> None:
        """Wait until all steps have ended, and all gradients that have left are on the host."""
        if (collector := self._stepper.host.collector) is not None:
            collector.flush()
        self.synchronize()

    def _checked_gradients(self) -> dict[Tensor, Tensor]:
        """Return the gradients on the device by their parameters, after all checks."""
        grads = {}
        for index, group in enumerate(self.param_groups):
            for number, param in enumerate(group["params"]):
                if param.grad is not None:
                    name_of = partial(lambda i, n: self._names(i)[n], index, number)
                    check_gradient(param, param.grad, name_of)
                    if param in self._host_params:
                        check_kind(self._host_params[param], self._options.bucket_bytes)
                    grads[param] = param.grad
        return grads

    def _factor(self, grads: Mapping[Tensor, Tensor], counts: Mapping[Tensor, int]) -> float:
        """Return the number that clips all gradients; wait until it is known."""
        if self._options.max_norm is None:
            return 1.0
        squares: Mapping[Tensor, float] = {}
        if counts:
            self.synchronize()
            squares = self._stepper.host.squares(counts)
        params = [param for group in self.param_groups for param in group["params"]]
        self.grad_norm = gradient_norm([*grads.values()], squares, params, self._wait_for_norm)
        return clip_factor(self.grad_norm, self._options.max_norm)

    def _wait_for_norm(self, device: torch.device) -> None:
        event = torch.Event(device=device)
        event.record(torch.accelerator.current_stream(device))
        self._worker.wait_for(event, "norm of gradients", f"all parameters on {device}")

    def _packed_hypers(self, factor: float) -> list[array[float]]:
        """Return the groups' hyperparameters as the kernel takes them; raise if one is invalid."""
        rule, pack = self._rule.host.rule, self._host_converter.row
        return [pack(rule.hyper_values({**group, FACTOR: factor})) for group in self.param_groups]

    def _before_gradient(self, param: Tensor, is_first: bool) -> None:
        """Prepare a parameter's step in a backward pass: from now on its states are used."""
        self._backward_steps.refuse_another(is_first)
        if is_first or not self._stepper.host.has_hypers:
            self._begin_backward()
        self._states.show([param], self.state)

    def _begin_backward(self) -> None:
        """Prepare steps during a backward pass, before its first gradient is taken."""
        self._check_may_step()
        if self._states.to_use() != self._used_states:
            raise RuntimeError(
                "since the last step, an option of a group asks for other states, or a state was "
                'replaced: with hide="backward", call synchronize() after such a change'
            )
        self._states.renew(self.state, self._stepper.has_changed)
        self._stepper.follow_weights(only_changed=True)
        self._stepper.host.set_hypers(self._packed_hypers(1.0))
        self._backward_steps.begin()

    def _check_may_step(self) -> None:
        self._backward_steps.check()

    def _check_weights_are_sent(self, call: str) -> None:
        if self._options.hide == "backward":
            self._backward_steps.check_sent(call, self._stepper.host.gradient_counts)

    def synchronize(self) -> None:
        """Wait until all weights are on the device and all states are those of the last step.

        Call it before something other than the forward pass of `module` reads or changes weights or
        states, and after an interrupt in `step`: the step that it interrupted is taken, if it had
        begun on the host.

        Raises:
            OffloadError: A step failed on the host.
        """
        self._stepper.synchronize()
        if self._options.hide == "backward":
            self._build_if_changed()

    def refresh_masters(self) -> None:
        """Let the float32 weights follow the parameters, wherever they no longer round to them.

        A step does so by itself for parameters that torch's version counter has seen change. Call
        this after other changes: through `.data`, or by another library.

        Raises:
            RuntimeError: A backward pass has stepped, and `step` has not sent the weights.
        """
        self._check_weights_are_sent("refresh_masters")
        self.synchronize()
        with torch.no_grad():
            self._states.renew(self.state, lambda _: True)
            self._stepper.follow_weights(only_changed=False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients, also those that are kept on the host.

        With hide="backward", parameters have been stepped already, and `step` sends their weights.
        """
        if not set_to_none:
            self.synchronize()  # the gradients may be on their way to the host
        if (collector := self._stepper.host.collector) is not None:
            collector.flush()
            if self._options.stores_gradients:
                collector.restart()
        super().zero_grad(set_to_none)

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return the state in torch's format, after the last step has ended.

        The tensors are those that later steps change, as in torch. Between the backward passes of
        a step with gradients="leave", it has the gradients until now, too: "gradient_sum" and
        "gradient_count" of each parameter that has some.

        Raises:
            RuntimeError: A backward pass has stepped, and `step` has not sent the weights.
        """
        self._check_weights_are_sent("state_dict")
        self._collect()
        return super().state_dict()

    def _portable_state_dict(self, packed: dict[str, Any]) -> dict[str, Any]:
        packed["state"] = {index: {**states} for index, states in packed["state"].items()}
        packed = portable_state_dict(self, packed)  # type: ignore[arg-type]
        host = self._stepper.host
        if host.sums is not None and host.collector is not None:
            checkpoint.add_sums(
                packed, self.param_groups, host.sums.by_param, host.collector.counts
            )
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class, of the plain class, or of torch's.

        Float32 weights follow the parameters by value in the next step. If a load fails, it changes
        nothing. After an `OffloadError`, a load lets the optimizer step again.

        Raises:
            ValueError: The groups or the shapes of states differ, or the dict has gradients of an
                unfinished accumulation, and this optimizer keeps none on the host.
        """
        failure, failed_pass = self._worker.recover(), self._backward_steps.are_unfinished
        self._backward_steps.are_unfinished = False
        try:
            if failure or failed_pass:
                self._stepper.begin_anew()
            self._load(state_dict)
        except BaseException:
            self._backward_steps.are_unfinished = failed_pass
            if failure:
                self._worker.refuse(failure)
            raise

    def _load(self, state_dict: dict[str, Any]) -> None:
        self._collect()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            replacement = hook(self, state_dict)
            state_dict = state_dict if replacement is None else replacement
        state_dict, packed_sums = checkpoint.without_sums(state_dict)
        loaded = checkpoint.loaded_by(
            self._rule.public, self.param_groups, self._host_params, self._hyper, state_dict
        )
        sums = checkpoint.sums_by_param(packed_sums, state_dict, self.param_groups)
        checkpoint.check_sums(sums, self._options.stores_gradients)
        self._take_over(loaded)
        if sums:
            self._take_over_sums(sums)
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    @torch.no_grad()
    def _take_over(self, loaded: Any) -> None:
        """Copy the states of another optimizer, whose parameters are in the same order."""
        checkpoint.load_options(
            self.param_groups, loaded, self._host_params, self._build_if_changed
        )
        for own, other in checkpoint.param_pairs(self.param_groups, loaded):
            states = loaded.state.get(other, {})
            if owner := self._host_params.get(own):
                self._states.take(owner, states)
                self._stepper.doubt_weights(own)  # they may have been loaded, too
            self.state.pop(own, None)
            if states:
                self.state[own] = owner.states if owner else states
        self._build_if_changed()
        self._stepper.host.pipeline.copy_cells()
        collector = self._stepper.host.collector
        if collector is not None and not self._options.stores_gradients:
            collector.restart()  # the steps of the last backward pass are overwritten

    def _take_over_sums(self, sums: Mapping[Tensor, checkpoint.LoadedSum]) -> None:
        """Go on with an accumulation: gradients from before the load count no more."""
        self.zero_grad()
        self.synchronize()
        on_host = {param: each for param, each in sums.items() if param in self._host_params}
        self._stepper.host.go_on(on_host)
        for param, (total, _) in sums.items():
            if param not in on_host:
                param.grad = total.to(param.device, param.dtype)

    # The rest of the interface.

    def report(self) -> Report:
        """Return the bytes on each side, and what steps have taken, in milliseconds."""
        small, timings = set(self._small.params), self._stepper.host.ring.timings
        in_files = self._options.state_dir is not None
        states = {**self.state, **self._states.in_memory()}
        return make_report(states, small, self._options.ring_bytes, timings, in_files)

    def close(self) -> None:
        """End the threads when the last step has ended. States can still be read.

        Raises:
            OffloadError: The last step failed, and no call has told it yet.
        """
        try:
            self._worker.finish()
        finally:
            self._stepper.close()
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_class: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except OffloadError:
            if error_class is None:  # else the caller gets the first error
                raise

    def explained(self, first_index: int) -> list[str]:
        """Return what `optgen.explain` says about each group."""
        return group_lines(self.param_groups, self._host_params, self._options.threads, first_index)

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "an offloaded optimizer has a thread and pinned memory, and cannot be copied or "
            "pickled: save its state_dict()"
        )
