"""Policies as Python modules, and what PyTorch runs under them.

A product is a matrix product, a convolution or a part of one: what PyTorch's dispatcher runs, with the module that is
running. Backward products belong to the module whose forward op made their autograd node.
"""

import contextlib
import importlib.util
import json
import subprocess

import h5py
import torch
from torch.utils._python_dispatch import TorchDispatchMode

# ATen's op -> how many of its tensors are factors (the others are saved statistics).
_PRODUCTS = {
    "mm": 2,
    "addmm": 3,
    "bmm": 2,
    "baddbmm": 3,
    "addbmm": 3,
    "mv": 2,
    "addmv": 3,
    "dot": 2,
    "convolution": 3,
    "convolution_backward": 3,
    "mkldnn_rnn_layer": 3,
    "_scaled_dot_product_flash_attention_for_cpu": 3,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 4,
}
PRODUCTS_OF_GRAPHS = {"linear", "addmm", "matmul", "conv2d", "conv_transpose2d", "sdpa", "lstm", "gru"}
FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_WIDTH = ("int", "fp16", "bf16", "fp32", "tf32")  # a product of one TF32 factor is one in TF32


def policy_text(low, fp32_layers, more=""):
    """CPU autocast, with these layers in FP32."""
    rules = "".join(f'[[rule]]\nlayer = {json.dumps(name)}\ncompute = "fp32"\n' for name in fp32_layers)
    return f'extends = "torch-autocast-{low}-cpu:2.13"\n{more}{rules}'


def load(path):
    spec = importlib.util.spec_from_file_location("amp", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(binary_dir, folder, policy, graph, kind, file):
    """Writes a policy (TOML text) for a graph (JSON text) as `--emit KIND FILE` does: what the file cannot do, as text."""
    (folder / "policy.toml").write_text(policy)
    (folder / "graph.json").write_text(graph)
    done = subprocess.run(
        [binary_dir / "lockstep_recipe_tool", folder / "policy.toml", folder / "graph.json", kind, folder / file],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def emit(binary_dir, folder, policy, graph, kind="pytorch"):
    """The module of that kind."""
    write(binary_dir, folder, policy, graph, kind, "amp.py")
    return load(folder / "amp.py")


def captured_graph(path):
    with h5py.File(path) as file:
        return bytes(file["graphs/0/json"][()]).decode()


class Products(TorchDispatchMode):
    """(module path, format) of every product: `forward` in the order of the calls, `backward` as a set.

    In a product all factors have one format; anything else is an error. tf32: FP32 products count as "tf32" where the
    switch for their library is on; what the CPU computes does not depend on it.
    """

    def __init__(self, model, tf32=False):
        super().__init__()
        self._tf32 = tf32
        self.path, self.forward, self.backward, self.count, self._made_by = [], [], set(), 0, {}
        self._hooks = contextlib.ExitStack()
        for name, module in model.named_modules():
            enter = module.register_forward_pre_hook(lambda *_, name=name: self.path.append(name))
            leave = module.register_forward_hook(self._leave)
            self._hooks.callback(enter.remove)
            self._hooks.callback(leave.remove)

    def _leave(self, *_):
        self.path.pop()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        node = torch._C._current_autograd_node()
        layer = self._made_by.get(node._sequence_nr()) if node else self.path[-1] if self.path else None
        if node is None:  # the first op that sees a number is the one whose node has it
            self._made_by.setdefault(torch.autograd._get_sequence_nr() - 1, layer)
        name = function.overloadpacket.__name__
        if name in _PRODUCTS and layer is not None:
            self._add(layer, name, args, node is not None)
        return result

    def _add(self, layer, name, args, is_backward):
        factors = [a.dtype for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()][: _PRODUCTS[name]]
        assert len(set(factors)) == 1, f"{layer}: {name} of {factors}"
        self.count += 1
        made = FORMATS[factors[0]]
        switch = torch.backends.cudnn if name.startswith("convolution") else torch.backends.cuda.matmul
        if self._tf32 and made == "fp32" and switch.allow_tf32:
            made = "tf32"
        if is_backward:
            self.backward.add((layer, made))
        else:
            self.forward.append((layer, made))

    def __exit__(self, *error):
        self._hooks.close()
        return super().__exit__(*error)


def _is_flash(nodes, op):
    """A backward node is not in the graph of a capture; its q is its forward partner's."""
    if op["node"] in nodes:
        return nodes[op["node"]]["attrs"].get("model") == "flash"
    q = op["inputs"][0]["value"]
    return any(
        node["op"] == "sdpa" and node["in"][0] == q and node["attrs"].get("model") == "flash" for node in nodes.values()
    )


def products_of_policy(program, graph):
    """(forward, backward) as in Products, from `lockstep explain --json` and the graph's JSON.

    An op computes in the widest of its formats, a backward op at least in that of its layer's forward ones: widening is exact
    and has no cast in a program. PyTorch's attention by matrices ("math") widens its operands and has two products.
    """
    nodes = {node["id"]: node for node in json.loads(graph)["nodes"]}
    flash = {op["node"]: _is_flash(nodes, op) for op in program["ops"] if op["op"].startswith("sdpa")}
    forward, backward = [], set()
    for op in program["ops"]:
        read = [operand["as"] for operand in op["inputs"]]
        if op["op"].partition("_backward")[0] not in PRODUCTS_OF_GRAPHS or op["op"].endswith("_bias"):
            continue
        if op["op"] == "sdpa_backward":  # q, k, v, then what was saved of the rows
            backward.add((op["layer"], read[0] if flash[op["node"]] else read[3]))
        elif op["backward"]:
            partner = {made for layer, made in forward if layer == op["layer"]}
            backward.add((op["layer"], max([*read, *(partner if len(partner) == 1 else ())], key=_WIDTH.index)))
        elif op["op"] == "sdpa" and not flash[op["node"]]:
            forward += [(op["layer"], op["outputs"][1]["format"])] * 2
        else:
            forward.append((op["layer"], max([*read, op["outputs"][0]["format"]], key=_WIDTH.index)))
    return forward, backward


def products_of_capture(lockstep, capture, policy):
    """products_of_policy of a captured model under the policy of this file."""
    program = json.loads(lockstep("explain", capture, "--policy", policy, "--json").stdout)
    return products_of_policy(program, captured_graph(capture))
