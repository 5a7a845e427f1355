"""One training step of every built-in model against its twin in PyTorch 2.13: same weights, same batch,
masks and noise injected.

FP64 (gate V1): loss to 1e-12 relative, each parameter's gradient
    ||delta|| <= 1e-9 ||g|| + 1e-12 max_q ||g_q||
FP32: loss to 1e-6 relative; of the SMOOTH models, each parameter's gradient
    ||delta|| <= 1e-5 ||g|| + 1e-7 max_q ||g_q||
Those of the others are not bounded: one flipped ReLU moves them by percents with both programs right; op by
op FP32 is bounded in test_torch_ops_*.py.
The second term is for gradients that are zero in exact arithmetic (a bias in front of batch_norm).
"""

import subprocess

import numpy as np
import pytest
import torch
import torch_models as twins

BATCH = 3

# name -> twin, sizes, number of classes (None: the model has none), dropout rate
MODELS = {
    "mlp": (twins.Mlp, {}, 10, 0),
    "lenet": (twins.Lenet, {}, 10, 0),
    "resnet20": (twins.Resnet20, {"width": 8}, 10, 0),
    "unet": (twins.Unet, {"width": 8}, 6, 0),
    "detector": (twins.Detector, {"width": 8}, 6, 0),
    "vae": (twins.Vae, {"hidden": 64, "latent": 8}, None, 0),
    "vit": (twins.Vit, {"layers": 2, "width": 32, "heads": 4, "patch": 8}, 10, 0.1),
    "gpt": (twins.Gpt, {"layers": 2, "width": 32, "heads": 4, "context": 24}, 31, 0.1),
    "bert": (twins.Bert, {"layers": 2, "width": 32, "heads": 4, "context": 24}, 31, 0.1),
    # Dropout between the layers happens inside the op; the twin takes the masks it drew.
    "lstm": (twins.Lstm, {"layers": 3, "embedding": 16, "hidden": 24, "context": 12}, 31, 0.2),
}
SMOOTH = ("vit", "gpt", "bert", "lstm")
HAS_DROPOUT = ("vit", "gpt", "bert", "lstm")
IMAGES = {"mlp": (1, 28, 28), "lenet": (1, 28, 28), "vae": (1, 28, 28)}


def tool_words(name):
    _, sizes, classes, dropout = MODELS[name]
    words = [f"batch={BATCH}", "image=" + ",".join(map(str, IMAGES.get(name, (3, 32, 32))))]
    words += [f"{size}={value}" for size, value in sizes.items()]
    if classes:
        words.append(f"classes={classes}")
    if name in HAS_DROPOUT:
        words.append(f"dropout={dropout}")
    return words


def run_tool(binary_dir, *words):
    done = subprocess.run([str(binary_dir / "lockstep_step_tool"), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shape_of(text):
    return () if text == "-" else tuple(map(int, text.split(",")))


def draw_batch(description, classes, name, dtype):
    batch = {}
    for line in description.splitlines():
        kind, *rest = line.split()
        if kind != "in" or rest[0].startswith("mask_"):
            continue
        path, shape = rest[0], shape_of(rest[1])
        if rest[2] == "i32":
            batch[path] = torch.randint(0, classes, shape)
            if name == "bert" and path == "labels":
                batch[path][torch.rand(shape) < 0.85] = -100
                batch[path][0] = 1
        elif path == "box_mask":
            batch[path] = (torch.rand(shape) < 0.3).to(dtype)
        else:
            batch[path] = torch.randn(shape, dtype=dtype)
    return batch


def write(path, tensor, dtype):
    number = "<f8" if dtype == torch.float64 else "<f4"
    array = tensor.detach().numpy()
    array.astype("<i4" if array.dtype.kind in "iu" else number).tofile(path)


def drawn_masks(lines, folder, dropout):
    """What an op drew for itself; 0 and 1, with the right share of zeros."""
    found = None
    for _, node, extents in (line for line in lines if line[0] == "drawn"):
        values = np.fromfile(folder / f"drawn_{node}", dtype="<i4")
        deviation = (dropout * (1 - dropout) / values.size) ** 0.5
        assert set(values) == {0, 1} and abs(np.mean(values == 0) - dropout) <= 5 * deviation
        found = torch.from_numpy(values.reshape(shape_of(extents)))
    return found


def step_of_both(binary_dir, tmp_path, name, seed, dtype):
    """(our loss, twin's loss, {parameter: (ours, twin's)}, {buffer: (ours, twin's)})."""
    make, sizes, classes, dropout = MODELS[name]
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    words = tool_words(name)
    description = run_tool(binary_dir, "--describe", name, *words)
    keep = {k: v for k, v in sizes.items() if k != "context" or name in ("gpt", "bert")}
    model = make(**keep, **({"classes": classes} if classes else {})).to(dtype)
    model.train()
    parameters = dict(model.named_parameters())
    batch = draw_batch(description, classes, name, dtype)
    for parameter, value in parameters.items():
        write(tmp_path / f"p_{parameter}", value, dtype)
    buffers = dict(model.named_buffers())
    lines = [line.split() for line in description.splitlines()]
    assert {words[1] for words in lines if words[0] == "p"} == set(parameters)
    for words_of_line in lines:
        if words_of_line[0] == "b":
            write(tmp_path / f"b_{words_of_line[1]}", buffers[words_of_line[1]], dtype)
    for path, tensor in batch.items():
        write(tmp_path / f"in_{path}", tensor, dtype)
    shapes = {line[1]: shape_of(line[2]) for line in lines if line[0] == "in"}
    given = []
    for node in [line[1] for line in lines if line[0] == "mask"]:
        given.append((torch.rand(shapes[node]) >= dropout).int())
        write(tmp_path / f"in_{node}", given[-1], dtype)

    precision = "fp64" if dtype == torch.float64 else "fp32"
    run_tool(binary_dir, name, str(tmp_path), precision, *words)
    masks = twins.Masks(dropout, given if dropout else [], drawn_masks(lines, tmp_path, dropout))
    assert (masks.drawn is not None) == (name == "lstm")
    loss = model(batch, masks)
    loss.backward()
    assert not masks.left
    number = "<f8" if dtype == torch.float64 else "<f4"

    def read(file, like):
        return np.fromfile(tmp_path / file, dtype=number).reshape(like.shape).astype(np.float64)

    gradients = {n: (read(f"g_{n}", p.grad), p.grad.numpy().astype(np.float64)) for n, p in parameters.items()}
    new_buffers = {n: (read(f"m_{n}", b), b.numpy().astype(np.float64)) for n, b in buffers.items() if "running" in n}
    return float((tmp_path / "loss.txt").read_text()), loss.item(), gradients, new_buffers


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", [0, 1])
def test_fp64_step_equals_torch(binary_dir, tmp_path, name, seed):
    ours, loss, gradients, buffers = step_of_both(binary_dir, tmp_path, name, seed, torch.float64)
    assert abs(ours - loss) <= 1e-12 * abs(loss)
    largest = max(np.linalg.norm(expected) for _, expected in gradients.values())
    worst, where = 0.0, ""
    for parameter, (got, expected) in gradients.items():
        bound = 1e-9 * np.linalg.norm(expected) + 1e-12 * largest
        share = np.linalg.norm(got - expected) / bound
        if share > worst:
            worst, where = share, parameter
    assert worst <= 1, f"{where}: {worst:.3e} of its bound"
    for buffer, (got, expected) in buffers.items():
        assert np.allclose(got, expected, rtol=1e-12, atol=1e-14), buffer
    print(
        f"{name} seed {seed}: loss off by {abs(ours / loss - 1):.1e} relative, worst gradient at "
        f"{worst:.1e} of its bound ({where}), {len(gradients)} parameters, {len(buffers)} buffers"
    )


@pytest.mark.parametrize("name", MODELS)
def test_fp32_step_equals_torch(binary_dir, tmp_path, name):
    ours, loss, gradients, _ = step_of_both(binary_dir, tmp_path, name, 0, torch.float32)
    assert abs(ours - loss) <= 1e-6 * abs(loss)
    largest = max(np.linalg.norm(expected) for _, expected in gradients.values())
    worst, where = max(
        (np.linalg.norm(got - expected) / (1e-5 * np.linalg.norm(expected) + 1e-7 * largest), n)
        for n, (got, expected) in gradients.items()
    )
    print(
        f"{name}: FP32 loss off by {abs(ours / loss - 1):.1e} relative, worst gradient at {worst:.1e} of "
        f"the smooth models' bound ({where})"
    )
    assert worst <= 1 or name not in SMOOTH, f"{where}: {worst:.3e} of its bound"
