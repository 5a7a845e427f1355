"""Runs one op of Lockstep on numpy arrays, forward and backward, and measures the distance to PyTorch.

Every floating operand counts as a parameter, so that its gradient comes back; integer arrays are
graph inputs. The program is tests/tools/op_tool.cc.
"""

import json
import math
import os
import pathlib
import subprocess
import tempfile

import numpy as np

BINARY_DIR = pathlib.Path(os.environ.get("LOCKSTEP_BINARY_DIR", "build/release"))
CONTAINERS = {"fp32": np.dtype("<f4"), "fp64": np.dtype("<f8")}


class OpError(Exception):
    """The tool refused: its message, as a user would read it."""


def run_op(op, inputs, attrs=None, cotangents=None, dtype="fp64", policy="fp32", seed=0, step=0, constants=()):
    """The outputs of `op`, and the gradients of its operands.

    inputs: arrays in operand order (bool and integer arrays become int32).
    constants: numbers of floating operands that take no gradient.
    cotangents: None, one array for output 0, or {output index: array}.
    Returns ([y0, y1, ...], [dx0, None where there is no gradient, ...]).
    """
    floating = CONTAINERS[dtype]
    if cotangents is None:
        cotangents = {}
    elif not isinstance(cotangents, dict):
        cotangents = {0: cotangents}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        operands, shapes = [], []
        for i, array in enumerate(map(np.asarray, inputs)):
            is_float = np.issubdtype(array.dtype, np.floating)
            array.astype(floating if is_float else "<i4").tofile(folder / f"x{i}")
            operands.append(
                {"shape": list(array.shape), "dtype": "f32" if is_float else "i32", "constant": i in constants}
            )
            shapes.append(array.shape)
        for k, dy in cotangents.items():
            np.asarray(dy).astype(floating).tofile(folder / f"dy{k}")
        request = {
            "op": op,
            "attributes": {k: json_value(v) for k, v in (attrs or {}).items()},
            "container": dtype,
            "policy": policy,
            "seed": seed,
            "step": step,
            "operands": operands,
        }
        (folder / "request.json").write_text(json.dumps(request))
        done = subprocess.run([str(BINARY_DIR / "lockstep_op_tool"), name], capture_output=True, text=True)
        if done.returncode != 0:
            raise OpError(done.stderr)
        reply = json.loads((folder / "reply.json").read_text())
        outputs = []
        for k in range(len(reply)):
            kind = reply[f"y{k}"]
            stored = "<i4" if kind["dtype"] == "i32" else floating
            outputs.append(np.fromfile(folder / f"y{k}", dtype=stored).reshape(kind["shape"]))
        gradients = [
            np.fromfile(folder / f"dx{i}", dtype=floating).reshape(shape) if (folder / f"dx{i}").exists() else None
            for i, shape in enumerate(shapes)
        ]
        return outputs, gradients


def json_value(value):
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return list(value) if isinstance(value, tuple) else value


def distance(ours, expected):
    """||ours - expected|| / ||expected|| in double; places where both are NaN or the same infinity
    count as equal, a difference in kind as infinitely far."""
    ours, expected = np.asarray(ours, np.float64), np.asarray(expected, np.float64)
    assert ours.shape == expected.shape, f"shape {ours.shape}, expected {expected.shape}"
    special = ~np.isfinite(expected)
    if not np.array_equal(ours[special], expected[special], equal_nan=True):
        return math.inf
    if not np.isfinite(ours[~special]).all():
        return math.inf
    norm = np.linalg.norm(expected[~special])
    delta = np.linalg.norm(ours[~special] - expected[~special])
    return float(delta / norm) if norm > 0 else float(delta)


def random_arrays(seed, *shapes):
    """Normal random numbers that are float32 values, so that both precisions see the same input."""
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape).astype(np.float32).astype(np.float64) for shape in shapes]


# Bounds on `distance`: forward and vector-Jacobian product, by container.
BOUNDS = {"fp64": (1e-12, 1e-12), "fp32": (2e-6, 1e-5)}


def compare_with_torch(
    op, reference, inputs, attrs=None, bounds=BOUNDS, differentiable=None, float_outputs=1, constants=()
):
    """Compares outputs 0 to float_outputs - 1 and all gradients with PyTorch, in FP64 and FP32.

    reference: takes torch tensors (operand order), gives a tensor or a tuple of tensors.
    constants: floating operands that take no gradient (class weights, masks).
    differentiable: the operands whose gradients are compared; None: all floating ones.
    Returns the largest distance over its bound.
    """
    import torch

    torch.set_num_threads(1)
    worst = 0.0
    for dtype, (forward_bound, gradient_bound) in bounds.items():
        kind = torch.float64 if dtype == "fp64" else torch.float32
        tensors = []
        for array in map(np.asarray, inputs):
            if np.issubdtype(array.dtype, np.floating):
                # A copy: an in-place reference must not reach the caller's arrays.
                tensors.append(torch.tensor(array.copy(), dtype=kind).requires_grad_(True))
            else:
                tensors.append(torch.tensor(array.copy()))
        expected = reference(*tensors)
        expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
        generator = np.random.default_rng(99)
        wanted = [i for i, t in enumerate(tensors) if t.dtype.is_floating_point]
        wanted = [i for i in wanted if i not in constants]
        if differentiable is not None:
            wanted = [i for i in wanted if i in differentiable]
        cotangents = {}
        if wanted:
            for k in range(float_outputs):
                dy = generator.standard_normal(tuple(expected[k].shape)).astype(np.float32)
                cotangents[k] = dy
            torch.autograd.backward(
                expected[:float_outputs], [torch.tensor(cotangents[k], dtype=kind) for k in range(float_outputs)]
            )
        outputs, gradients = run_op(op, inputs, attrs, cotangents, dtype, constants=constants)
        for k in range(min(len(expected), len(outputs))):
            want = expected[k].detach().numpy()
            if np.issubdtype(want.dtype, np.floating):
                far = distance(outputs[k], want)
                assert far <= forward_bound, f"{op} {dtype} output {k}: {far:.2e} > {forward_bound}"
                worst = max(worst, far / forward_bound)
            else:
                assert np.array_equal(outputs[k], want), f"{op} {dtype} output {k} differs"
        for i in wanted:
            want = tensors[i].grad
            want = np.zeros(tensors[i].shape) if want is None else want.numpy()
            assert gradients[i] is not None, f"{op} {dtype}: no gradient of operand {i}"
            far = distance(gradients[i], want)
            assert far <= gradient_bound, f"{op} {dtype} gradient {i}: {far:.2e} > {gradient_bound}"
            worst = max(worst, far / gradient_bound)
    return worst
