"""A session that carries a state from run to run without copying it.

A training step reads parameters and writes new ones. Each state value has two buffers on the device; a run reads one of
each pair and writes the other, and afterwards they change places. What a step costs in Python is binding the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import _pybind_state

from graphkit.errors import GraphkitError, InputError, did_you_mean
from graphkit.modelfile import ModelLike

from .devices import Device
from .feeds import FeedCheck, Port, prepare
from .session import Session
from .values import allocate, is_bridged, overwrite, to_array, to_value

__all__ = ["State", "StepSession"]

_runtime: Any = _pybind_state  # what it holds is compiled, and not described to type checkers


class State:
    """Named arrays on a device, which several ``StepSession`` may share.

    Those in ``carried`` change from run to run and have two buffers, of which one is current; the others have one.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray[Any, Any]], device: Device, carried: Iterable[str]) -> None:
        self.device = device
        self.carried = frozenset(carried)
        # Copies: the runtime will write to these buffers, and a numpy array given as one is used as it is.
        first = {
            name: to_value(array.copy(order="C"), array.dtype, device.type, device.index)
            for name, array in arrays.items()
        }
        second = {
            name: allocate(array.shape, array.dtype, device.type, device.index) if name in self.carried else first[name]
            for name, array in arrays.items()
        }
        self.sides = (first, second)
        self.side = 0

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the current values on the host."""
        return {name: np.array(to_array(value)) for name, value in self.sides[self.side].items()}

    def load(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Overwrite the current values; names, dtypes and shapes must be those of the state."""
        for name, value in self.sides[self.side].items():
            shape = tuple(value.shape())
            if arrays[name].shape != shape:
                raise InputError(f"state '{name}' has shape {list(shape)}, but got {list(arrays[name].shape)}")
        for name, value in self.sides[self.side].items():
            overwrite(value, arrays[name])


class StepSession:
    """A model whose state stays on the device.

    ``state`` holds the first value of every state input, by name, or is the ``State`` of another ``StepSession`` on the
    same device. ``pairs`` maps a state input to the output that becomes its next value; state inputs that are not in it
    are only read (an evaluation reads the parameters that training writes). ``outputs`` are what a run returns: by
    default all that are no state.

    >>> import onnx.parser
    >>> text = '''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[2] w, float[N, 2] x) => (float[2] w_new, float loss)
    ... {m = ReduceMean<axes=[0], keepdims=0>(x) w_new = Sub(w, m) loss = ReduceSum<keepdims=0>(w)}'''
    >>> step = StepSession(onnx.parser.parse_model(text), {"w": np.ones(2, "float32")}, {"w": "w_new"})
    >>> for _ in range(2):
    ...     loss = step.run({"x": np.ones((3, 2), "float32")})["loss"]
    >>> float(loss), step.state()["w"]
    (0.0, array([-1., -1.], dtype=float32))
    """

    def __init__(
        self,
        model: ModelLike,
        state: Mapping[str, Any] | State,
        pairs: Mapping[str, str],
        outputs: Sequence[str] | None = None,
        device: str = "cpu",
        threads: int | None = None,
        optimizations: bool = True,
        *,
        disabled_optimizers: Iterable[str] = (),
    ) -> None:
        self.session = Session(model, device, threads, optimizations, disabled_optimizers=disabled_optimizers)
        names = list((state.sides[0] if isinstance(state, State) else state).keys())
        ports = {one.name: one for one in self.session.inputs}
        # A shared state may hold more than this model reads: an evaluation takes no optimizer moments.
        self._state_ports = [ports[name] for name in names if name in ports]
        self.pairs = dict(pairs)
        self._check_pairs(names)
        if isinstance(state, State):
            self._state = state
        else:
            unknown = [name for name in names if name not in ports]
            if unknown:
                hint = did_you_mean(unknown[0], ports)
                raise InputError(f"the model has no input '{unknown[0]}' to keep a state in.{hint}")
            self._state = State(prepare(self._state_ports, state), self.session.runtime_device, self.pairs)
        if self.pairs and self._state.carried != set(self.pairs):
            raise GraphkitError("two sessions that share a state and change it must carry on the same parts of it")
        if self._state.device != self.session.runtime_device:
            raise GraphkitError(f"the state is on {self._state.device}, but the session on {self.session.device}")
        held = {one.name for one in self._state_ports}
        self.inputs: tuple[Port, ...] = tuple(one for one in self.session.inputs if one.name not in held)
        kept = set(self.pairs.values())
        names_out = [one.name for one in self.session.outputs if one.name not in kept] if outputs is None else outputs
        self._outputs = self.session.check_outputs(names_out)
        self._known = [(one.name, one.dtype) for one in self.inputs]
        self._check = FeedCheck(self.inputs)
        # bind_input takes numpy arrays as they are, but knows neither other element types nor overridable initializers.
        self._plain = all(is_bridged(one.dtype) and one.kind == "tensor" and one.required for one in self.inputs)
        self._plain_outputs = all(
            is_bridged(one.dtype) and one.kind == "tensor" for one in self.session.outputs if one.name in self._outputs
        )
        self._host = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()
        self._bound: frozenset[str] | None = None
        self._bindings = self._bind_both()
        inner: Any = self.session.runtime_session._sess
        self._run = inner.run_with_iobinding

    @property
    def shared_state(self) -> State:
        """The state, to be given to another ``StepSession``."""
        return self._state

    def run(self, batch: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Run one step on ``batch`` and return the outputs by name; the state is now the one that the step wrote.

        A step that fails leaves the state as it was.
        """
        batch = self._check(batch)
        if batch.keys() != self._bound:  # an optional input that is left out must not keep its last value
            self._bound = frozenset(batch)
            self._bindings = self._bind_both()
        binding = self._bindings[self._state.side]
        if self._plain:
            for name, array in batch.items():
                binding.bind_input(name, array)
        else:
            for name, dtype in self._known:
                if name in batch and dtype is not None:
                    binding.bind_ortvalue_input(name, to_value(batch[name], dtype)._get_c_value())
        for name in self._outputs:
            # Bound anew for every run: a bound output would otherwise be the same memory each time, and of one shape.
            binding.bind_output(name, self._host)
        try:
            self._run(binding, None)
        except Exception as error:  # ONNX Runtime's exceptions share no base of their own
            raise self.session.explain(error, batch) from error
        if self.pairs:
            self._state.side ^= 1
        values = binding.get_outputs()
        start = len(self.pairs)
        if self._plain_outputs:
            return {name: values[start + i].numpy() for i, name in enumerate(self._outputs)}
        return {name: to_array(onnxruntime.OrtValue(values[start + i])) for i, name in enumerate(self._outputs)}

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the state's current values, by the names of the inputs that hold them."""
        return self._state.arrays()

    def load_state(self, arrays: Mapping[str, Any]) -> None:
        """Overwrite the state; every name must be there, with the dtype and shape it has."""
        self._state.load(prepare(self._state_ports, arrays))

    def _check_pairs(self, names: Sequence[str]) -> None:
        outputs = {one.name: one for one in self.session.outputs}
        inputs = {one.name: one for one in self._state_ports}
        for source, target in self.pairs.items():
            if source not in inputs:
                hint = did_you_mean(source, names)
                raise InputError(f"'{source}' is to be carried on but is not in the state.{hint}")
            self.session.check_outputs([target])
            before, after = inputs[source], outputs[target]
            if None not in (before.dtype, after.dtype) and before.dtype != after.dtype:
                raise GraphkitError(f"the output {after} cannot become the next value of the input {before}")

    def _bind_both(self) -> tuple[Any, Any]:
        first, second = self._state.sides
        return self._bind(first, second), self._bind(second, first)

    def _bind(self, read: Mapping[str, onnxruntime.OrtValue], write: Mapping[str, onnxruntime.OrtValue]) -> Any:
        binding = _runtime.SessionIOBinding(self.session.runtime_session._sess)
        for one in self._state_ports:
            binding.bind_ortvalue_input(one.name, read[one.name]._get_c_value())
        for source, target in self.pairs.items():
            binding.bind_ortvalue_output(target, write[source]._get_c_value())
        return binding
