"""Writes the captured data in the layout of docs/capture-file.md."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from ..ir.graph import Graph
from ..ir.program import Autocast
from ..model_state import State, Subject, as_real, rule_of, state_codes, world_size
from ..needs import give_back_memory
from ..trace.script_lines import ScriptLines
from ..trace.traced import Traced
from ..version import __version__
from ..watch.kept_draws import Kept, unpacked
from ..watch.precision import shortcuts
from ..watch.step import Micro, Step
from . import reference
from .part_checks import PartChecks
from .writer import Writer, escape

MOST_NOTES = 16


def json_text(value: Any) -> str:
    """Floats come out with as many digits as they need to come back the same (at most 17)."""
    return json.dumps(value)


class Recorder:
    def __init__(
        self,
        path: str,
        subject: Subject,
        first: Traced,
        initial: State,
        hyper: list[dict[str, Any]],
        autocast: tuple[str, torch.dtype] | None,
        watch: list[str],
        lines: ScriptLines | None,
        part: PartChecks | None,
    ):
        self.writer = Writer(path, narrow=part is not None)
        self._part = part
        self._subject, self._graphs, self._lines = subject, 0, lines
        self._values: dict[str, str] = {}  # of lines
        self._order: list[str] = []  # parameters, as the graphs name them one after the other
        self._buffers_mutated: set[str] = set()
        self._attention: set[str] = set()
        self._constants: set[str] = set()  # written
        self._notes: dict[str, str] = {}  # by line of the model
        try:
            self._start(first, initial, hyper, autocast)
            if watch:
                self.writer.attributes("", {"watch": watch})
        except BaseException:
            self.writer.abandon()
            raise

    def _start(
        self, first: Traced, initial: State, hyper: list[dict[str, Any]], autocast: tuple[str, torch.dtype] | None
    ) -> None:
        subject, writer = self._subject, self.writer
        device = str(subject.device)
        if subject.device.type == "cuda":
            device = f"cuda:{torch.cuda.get_device_name(subject.device)}"
        writer.attributes(
            "",
            {
                "capture_version": __version__,
                "torch_version": str(torch.__version__),
                "frontend": first.program.frontend,
                "device": device,
                "model_class": f"{type(subject.model).__module__}.{type(subject.model).__qualname__}",
                "replay_mode": "full" if subject.replays_optimizer else "recorded",
                "v0": "bit-exact",
                "world_size": np.int32(world_size()),
            },
        )
        self._modules(first)
        for tensor, paths in subject.names.params:
            place = f"params/{escape(paths[0])}"
            writer.tensor(place, initial.params[paths[0]], owned=True)
            writer.attributes(
                place,
                {
                    "torch_dtype": str(as_real(tensor).dtype).removeprefix("torch."),
                    "requires_grad": bool(tensor.requires_grad),
                    "aliases": paths[1:],
                    "opt_group": np.int32(subject.group_of(paths[0])),
                },
            )
        self._optimizer(initial, hyper)
        self._amp(autocast, first.graph.region() if first.graph else None, initial)
        self._initial_buffers = initial.buffers

    def _modules(self, first: Traced) -> None:
        modules = [
            {
                "fqn": path,
                "class": f"{type(module).__module__}.{type(module).__qualname__}",
                "children": [name for name, _ in module.named_children()],
                "training": bool(module.training),
                "calls": first.module_calls.get(path, 0),
            }
            for path, module in self._subject.model.named_modules()
        ]
        self.writer.json("modules", modules)

    def _optimizer(self, initial: State, hyper: list[dict[str, Any]]) -> None:
        subject, optimizer = self._subject, self._subject.optimizer
        if optimizer is None:
            self.writer.attributes("optimizer", {"class": "none", "module": "", "impl": ""})
            self.writer.attributes("optimizer/groups/0", {"params": [], "hyper": "{}"})
            return
        kind, group = rule_of(optimizer) or type(optimizer), subject.groups()[0]
        impl = "fused" if group.get("fused") else "foreach" if group.get("foreach") else "for-loop"
        self.writer.attributes(
            "optimizer",
            {
                "class": kind.__name__,
                "module": kind.__module__,
                "impl": impl,
                "master_weights": bool(subject.masters.held),
            },
        )
        for number, (own, values) in enumerate(zip(subject.groups(), hyper, strict=True)):
            paths = [subject.paths[id(tensor)] for tensor in own["params"]]
            self.writer.attributes(f"optimizer/groups/{number}", {"params": paths, "hyper": json_text(values)})
        if subject.replays_optimizer:
            self.writer.optimizer_state("optimizer/state", initial.optimizer)
        if codes := state_codes(optimizer):
            self.writer.attributes("optimizer", {"state_codes": codes})
            self._notes["codes"] = (
                f"{type(optimizer).__name__} keeps its states in codes: so do lanes whose policy has "
                f'[optimizer] state_codes = "{codes}", the others keep them in full'
            )

    def _amp(self, autocast: tuple[str, torch.dtype] | None, region: Autocast | None, initial: State) -> None:
        """region: a block of the model, which gives the dtype if the loop has none."""
        values: dict[str, Any] = {
            "autocast": autocast is not None,
            "device_type": autocast[0] if autocast else self._subject.device.type,
            **shortcuts(),
        }
        if autocast is not None:
            values["dtype"] = str(autocast[1]).removeprefix("torch.")
        elif region is not None:
            values["dtype"] = region.dtype
        self.writer.attributes("amp", values)
        subject = self._subject
        scaler: dict[str, Any] = {"enabled": subject.scales}
        if subject.scales:
            kept = subject.scaler.state_dict()
            scaler |= {
                "scale": initial.scale,
                "growth_factor": float(kept["growth_factor"]),
                "backoff_factor": float(kept["backoff_factor"]),
                "growth_interval": np.int32(kept["growth_interval"]),
                "growth_tracker": np.int32(initial.growth_tracker),
            }
        self.writer.attributes("amp/scaler", scaler)
        fixed = ("growth_factor", "backoff_factor", "growth_interval")
        self._values = {
            "autocast": values["dtype"] if autocast is not None else "off",
            "scaler": ", ".join(f"{name} {scaler[name]:g}" for name in fixed) if subject.scales else "none",
        }

    def add_graph(self, traced: Traced) -> int:
        """The number of the graph in the file."""
        graph = traced.graph
        assert graph is not None
        number, self._graphs = self._graphs, self._graphs + 1
        if not self._subject.trains:
            graph.params = [(name, shape, False, module) for name, shape, _, module in graph.params]
        self._notes = {**traced.notes(), **self._notes}
        self._order += [name for name, *_ in graph.params if name not in self._order]
        self.writer.json(f"graphs/{number}/json", graph.json(), {"signature": traced.signature})
        for name, tensor in graph.constants.items():
            place = f"constants/{escape(name)}"
            if place not in self._constants:
                self._constants.add(place)
                self.writer.tensor(place, tensor, {"stat_exempt": name in graph.stat_exempt})
        self._buffers_mutated |= {buffer for buffer, *_ in graph.mutations}
        return number

    def step(self, step: Step) -> None:
        if step.number == 0:
            self.writer.attributes(
                "amp", {"cache_enabled": step.events.cache_enabled, "sdpa_backends": step.micro[0].backends}
            )
            self._script_lines(step)
        place, events, clipping = f"steps/{step.number:06d}", step.events, step.events.clipping
        subject, writer = self._subject, self.writer
        writer.attributes(
            place,
            {
                "loss": float(np.mean([micro.loss for micro in step.micro])),
                "loss_dtype": str(events.loss.dtype).removeprefix("torch.") if events.loss is not None else "float32",
                "scale_before": step.scale_before,
                "scale_after": subject.scale(),
                "growth_tracker_after": np.int32(subject.growth_tracker()),
                "found_inf": events.found_inf,
                "stepped": events.stepped,
                "clip_max_norm": clipping.max_norm,
                "clip_norm_type": clipping.norm_type,
                "clip_total_norm": clipping.total_norm,
                "clip_error_if_nonfinite": clipping.error_if_nonfinite,
                "clip_max_value": clipping.max_value,
                "clip_stage": clipping.stage,
                "hyper": json_text(step.hyper),
            },
        )
        for number, micro in enumerate(step.micro):
            self._micro(f"{place}/micro/{number:03d}", micro)
        if world_size() == 1:
            norms = [step.grad_norms.get(path, float("nan")) for path in self._order]
            writer.array(f"{place}/grad_norms", np.array(norms, dtype=np.float64))
        if events.stepped and not subject.replays_optimizer:
            weights = subject.weights()
            writer.tensors(f"{place}/params", {path: weights[path] for path in step.changed})
        if step.pre is not None:
            self._verify(step, step.pre)
            give_back_memory()
        writer.flush()

    def _script_lines(self, step: Step) -> None:
        """Code that the search does not understand costs the lines, not the capture."""
        assert self._lines is not None
        names = self._subject.names
        paths = [paths[0] for _, paths in (*names.params, *names.buffers)]
        try:
            rows = self._lines.rows(step.events.places, [paths for _, paths in names.params], paths, self._values)
        except Exception as error:
            self._notes["lines"] = f"the lines of the loop are not recorded: {type(error).__name__}: {error}"
            return
        self.writer.json("lines", [row.json() for row in rows])

    def add_others(self, step: int, paths: list[str]) -> None:
        """Weights outside of the optimizer that others changed after this step."""
        weights = self._subject.weights()
        self.writer.tensors(f"steps/{step:06d}/params", {path: weights[path] for path in paths})
        self._notes["others"] = (
            f"{len(paths)} weights outside of the optimizer, e.g. {paths[0]}, change between steps: each lane adds PyTorch's "
            "changes to its own weights"
        )

    def _micro(self, place: str, micro: Micro) -> None:
        graph, writer = micro.batch.traced.graph, self.writer
        assert graph is not None
        self._attention |= micro.attention
        writer.attributes(
            place, {"graph": np.int32(micro.graph), "loss": micro.loss, "loss_mult": micro.batch.loss_mult, "v0": True}
        )
        writer.attributes(f"{place}/inputs", {})  # a graph may have none
        for number, (entry, tensor) in enumerate(zip(graph.inputs, micro.inputs, strict=True)):
            writer.tensor(f"{place}/inputs/{number}", tensor, {"path": entry.path}, packed=True)
        sites = {site.call: site for site in micro.batch.traced.sites}
        for number, (node, call) in enumerate(graph.rng):
            site = sites[call]
            writer.bits(
                f"{place}/rng/{number}",
                self._mask(graph, node, micro.batch.draws[call], site.kind),
                {"node": node, "p": site.p, "kind": site.kind, "torch_op": micro.torch_ops[call]},
            )

    @staticmethod
    def _mask(graph: Graph, node: str, draws: list[Kept], kind: str) -> torch.Tensor:
        """In the shape of the node's own mask output."""
        if kind == "lstm":
            return torch.stack([unpacked(draw) for draw in draws])
        made = next(entry for entry in graph.nodes if entry.id == node)
        shape = made.out[2 if made.op == "sdpa" else 1][0]
        mask = unpacked(draws[0])
        return mask.reshape(shape) if mask.numel() == int(np.prod(shape)) else mask.expand(shape)

    def _verify(self, step: Step, pre: State) -> None:
        """In this order, so that little is in memory at a time: all of `pre` is needed until the weights have been stepped, the
        weights until they are in FP64."""
        place, writer, subject = f"verify/{step.number:06d}", self.writer, self._subject
        if step.number == 0:
            writer.attributes(f"{place}/pre", {"is_start": True})
        else:
            self._state(f"{place}/pre", pre)
        batches = [micro.batch for micro in step.micro]
        give_back_memory()
        ref32 = reference.compute(subject, pre, batches, double=False)
        if world_size() == 1 and _same_bits(step.grads, ref32.grads):
            writer.attributes(f"steps/{step.number:06d}", {"grads_are_ref32": True})
        elif world_size() == 1:
            writer.tensors(f"steps/{step.number:06d}/grads", step.grads, owned=True)
        step.grads = {}
        give_back_memory()
        writer.attributes(f"{place}/ref32", {"loss": ref32.loss})
        writer.tensors(f"{place}/ref32/grads", ref32.grads, owned=True)
        writer.tensors(f"{place}/ref32/post/buffers", ref32.buffers)
        if subject.replays_optimizer:
            writer.attributes(f"{place}/ref32/post/params", {})
            writer.attributes(f"{place}/ref32/post/opt_state", {})
            for path, weight, state in reference.stepped(subject, pre, step.hyper, ref32):
                writer.tensor(f"{place}/ref32/post/params/{escape(path)}", weight, owned=True)
                writer.optimizer_state(f"{place}/ref32/post/opt_state", {path: state} if state else {})
        pre.optimizer = {}
        give_back_memory()
        writer.attributes(f"{place}/ref64/grads", {})

        def take(path: str, wide: torch.Tensor) -> None:
            rest = None
            if path in ref32.grads:
                mask = reference.noise(ref32.grads[path], wide)
                writer.bits(f"{place}/noise/{escape(path)}", mask, {"count": np.int64(mask.sum())})
                rest = reference.rest_of(ref32.grads[path], wide, mask)
            if rest is None:
                writer.tensor(f"{place}/ref64/grads/{escape(path)}", wide, owned=True)
            else:
                writer.tensor(f"{place}/ref64/rests/{escape(path)}", rest, owned=True)

        ref64 = reference.compute(subject, pre, batches, double=True, take=take)
        writer.attributes(f"{place}/ref64", {"loss": ref64.loss})
        writer.tensors(
            f"{place}/ref64/post/buffers",
            {path: tensor for path, tensor in ref64.buffers.items() if as_real(tensor).dtype == torch.float64},
        )
        for number, (narrow, wide) in enumerate(zip(ref32.micro, ref64.micro, strict=True)):
            part = f"{place}/micro/{number:03d}"
            writer.attributes(part, {"loss32": narrow.loss, "loss64": wide.loss})
            for node, kink in narrow.kinks.items():
                if kink.dtype == torch.bool:
                    writer.bits(f"{part}/kinks/{node}", kink)
                else:
                    writer.tensor(f"{part}/kinks/{node}", kink, packed=True)
            for node, values in narrow.acts.items():
                writer.array(f"{part}/acts/{node}", np.array(values, dtype=np.float64))

    def _state(self, place: str, state: State) -> None:
        writer = self.writer
        writer.attributes(place, {"scale": state.scale, "growth_tracker": np.int32(state.growth_tracker)})
        writer.tensors(f"{place}/params", state.params, owned=True)
        writer.tensors(f"{place}/buffers", state.buffers)
        if self._subject.replays_optimizer:
            writer.optimizer_state(f"{place}/opt_state", state.optimizer)

    def finish(self, steps: int, is_final: bool) -> None:
        """is_final: the state now is that after the last step."""
        subject, writer = self._subject, self.writer
        persistent = set(subject.model.state_dict().keys())
        for _, paths in subject.names.buffers:
            path = paths[0]
            place = f"buffers/{escape(path)}"
            writer.tensor(place, self._initial_buffers[path])
            writer.attributes(
                place, {"persistent": path in persistent, "role": _role(path), "mutated": path in self._buffers_mutated}
            )
        if self._part is not None:
            self._part.write(writer)
        elif is_final:
            writer.tensors("final/params", subject.weights(), owned=True)  # before the loop goes on
            writer.tensors("final/buffers", subject.buffer_values())
            writer.attributes("final", {"scale": subject.scale(), "growth_tracker": np.int32(subject.growth_tracker())})
        writer.attributes("amp", {"sdpa_ran": ",".join(sorted(self._attention))})
        writer.attributes("", {"n_steps": np.int32(steps), "notes": [*self._notes.values()][:MOST_NOTES]})
        writer.finish()


def _same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[path].dtype == b[path].dtype == torch.float32
        and torch.equal(a[path].view(torch.int32), b[path].to(a[path].device).contiguous().view(torch.int32))
        for path in a
    )


def _role(path: str) -> str:
    roles = {"running_mean": "bn_mean", "running_var": "bn_var", "num_batches_tracked": "bn_count"}
    return roles.get(path.rpartition(".")[2], "other")
