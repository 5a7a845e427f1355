"""The model's parameters and buffers in the graph, and the buffers' new values from the forward pass."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..ir.graph import Graph, Node, Value, element_type, format_of
from ..ir.program import Program, Ref
from ..rules.context import Unsupported
from .ssa import value_name


class StoredValues:
    """Adds parameters and buffers to the graph when they are first read.

    buffers: tensors of the shapes and dtypes that buffers have before the step.
    counted: paths of num_batches_tracked that the forward pass raised; batch_norm makes the new count.
    """

    def __init__(self, graph: Graph, program: Program, model: torch.nn.Module, buffers: Mapping[str, torch.Tensor]):
        self._graph, self._program, self._model, self._buffers = graph, program, model, buffers
        self._renewed: dict[str, Value] = {}  # buffer -> its value after the last batch_norm so far
        self.counted: set[str] = set()
        self.trained: set[str] = set()  # ids of parameters that need a gradient

    def parameter(self, path: str) -> Value:
        """Of a complex one its real and imaginary part, along a last dimension."""
        parameter = self._model.get_parameter(path)
        shape = tuple(parameter.shape) + (2,) * parameter.is_complex()
        if all(path != entry[0] for entry in self._graph.params):
            self._note_format(f"p:{path}", parameter)
            self._graph.params.append((path, shape, parameter.requires_grad, _module_of(path)))
            if parameter.requires_grad:
                self.trained.add(f"p:{path}")
        return Value(f"p:{path}", shape, "f32")

    def buffer(self, path: str) -> Value:
        buffer = self._buffers[path]
        shape, dtype = tuple(buffer.shape) + (2,) * buffer.is_complex(), element_type(buffer.dtype)
        if all(path != entry[0] for entry in self._graph.buffers):
            self._note_format(f"b:{path}", buffer)
            self._graph.buffers.append((path, shape, dtype, _module_of(path)))
        return Value(f"b:{path}", shape, dtype)

    def _note_format(self, value: str, tensor: torch.Tensor) -> None:
        if format := format_of(tensor.dtype):
            self._graph.formats[value] = format

    def buffer_now(self, path: str) -> Value:
        return self._renewed.get(path) or self.buffer(path)

    def count_of_batch_norm(self, mean: Ref) -> Value | None:
        """num_batches_tracked, if the module counts its batches."""
        path = self._count_path(mean)
        return self.buffer_now(path) if path in self.counted else None

    def _count_path(self, mean: Ref) -> str:
        return self._buffer_path(mean).replace("running_mean", "num_batches_tracked")

    def _buffer_path(self, ref: Ref) -> str:
        path = self._program.buffers.get(value_name(ref.name))
        if path is None:
            raise Unsupported(
                "running statistics outside of the model",
                "the network of that batch_norm must be a submodule of the model, or in evaluation mode",
            )
        return path

    def mutate_batch_norm(self, node: Node, mean: Ref, var: Ref, count: Value | None) -> None:
        """Outputs 1 and 2 are the new running statistics, the last one is the new count."""
        for slot, ref in ((1, mean), (2, var)):
            self._set_buffer(self._buffer_path(ref), node, slot)
        if count is not None:
            self._set_buffer(self._count_path(mean), node, 5)

    def _set_buffer(self, path: str, node: Node, slot: int) -> None:
        """In its second call, a module reads the result of the first."""
        self._graph.mutations = [entry for entry in self._graph.mutations if entry[0] != path]
        self._graph.mutations.append((path, node.id, slot))
        self.buffer(path)
        self._renewed[path] = node.value(slot)


def _module_of(path: str) -> str:
    return path.rpartition(".")[0]
