"""Policies as Python modules, and what PyTorch runs under them."""

import contextlib
import importlib.util
import json
import subprocess

import h5py
import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {"mm": "linear", "addmm": "linear", "bmm": "matmul", "baddbmm": "matmul", "convolution": "conv",
            "_scaled_dot_product_flash_attention_for_cpu": "sdpa"}
FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def policy_text(low, fp32_layers, more=""):
    """CPU autocast, with these layers in FP32."""
    rules = "".join(f"[[rule]]\nlayer = {json.dumps(name)}\ncompute = \"fp32\"\n" for name in fp32_layers)
    return f'extends = "torch-autocast-{low}-cpu:2.13"\n{more}{rules}'


def load(path):
    spec = importlib.util.spec_from_file_location("amp", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def emit(binary_dir, folder, policy, graph):
    """The module that Lockstep writes for a policy (TOML text) and a graph (JSON text)."""
    (folder / "policy.toml").write_text(policy)
    (folder / "graph.json").write_text(graph)
    done = subprocess.run([binary_dir / "lockstep_recipe_tool", folder / "policy.toml", folder / "graph.json", folder / "amp.py"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load(folder / "amp.py")


def captured_graph(path):
    with h5py.File(path) as file:
        return bytes(file["graphs/0/json"][()]).decode()


class Products(TorchDispatchMode):
    """(module path, op, format of the result) of every product of the forward pass, factors of the same format."""

    def __init__(self, model):
        super().__init__()
        self.path, self.seen = [], []
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
        op = PRODUCTS.get(function.overloadpacket.__name__)
        if op and self.path:
            first = result[0] if isinstance(result, tuple) else result
            factors = {a.dtype for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()}
            assert factors == {first.dtype}, f"{self.path[-1]}: {op} of {factors}"
            self.seen.append((self.path[-1], op, FORMATS[first.dtype]))
        return result

    def __exit__(self, *error):
        self._hooks.close()
        return super().__exit__(*error)


def products_of_policy(program):
    """The same from `lockstep explain --json`."""
    kinds = {"linear": "linear", "addmm": "linear", "matmul": "matmul", "conv2d": "conv", "conv_transpose2d": "conv", "sdpa": "sdpa"}
    return [(op["layer"], kinds[op["op"]], op["outputs"][0]["format"])
            for op in program["ops"] if not op["backward"] and op["op"] in kinds]
