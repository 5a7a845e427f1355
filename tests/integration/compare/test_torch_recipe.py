"""`recommend --emit pytorch`: under the module, the twins of the built-in models run each op in the policy's format."""

import h5py
import pytest
import test_torch_casts as casts
import test_torch_models as steps
import torch
from cpu_kernels import need_low_precision_lstm
from recipes_in_torch import Products, emit, policy_text, products_of_policy

LAYER_OPS = {"linear", "conv2d", "conv_transpose2d", "batch_norm", "layer_norm"}


def twin_of(name):
    model, batch, dropout = casts.make_twin(name)
    return model, batch, casts.RandomMasks(dropout)


def formats_of_policy(program, name):
    return casts.by_op(casts.runs_of(program, ["mkldnn_rnn_layer"] * steps.MODELS[name][1].get("layers", 0)))


def graph_of(lockstep, folder, name):
    _, sizes, _, dropout = steps.MODELS[name]
    words = [f"{size}={value}" for size, value in sizes.items()]
    if name in steps.HAS_DROPOUT:
        words.append(f"dropout={dropout}")
    size = ["--size", ",".join(words)] if words else []
    lockstep(
        "replay",
        name,
        "--steps",
        1,
        "--batch",
        steps.BATCH,
        "--lanes",
        "fp32",
        "-o",
        folder / "run.h5",
        "--quiet",
        *size,
    )
    with h5py.File(folder / "run.h5") as file:
        graph = file["graph"][()]
        return graph.decode() if isinstance(graph, bytes) else bytes(graph).decode()


@pytest.mark.parametrize("name,low", casts.CPU_CASES)
def test_every_fifth_layer_in_fp32(binary_dir, lockstep, tmp_path, name, low):
    if name == "lstm":
        need_low_precision_lstm()
    model, batch, masks = twin_of(name)
    modules = dict(model.named_modules())
    program = casts.explain(binary_dir, name, f"torch-autocast-{low}-cpu:2.13")
    layers = [op["layer"] for op in casts.forward_ops(program) if op["layer"] in modules and op["op"] in LAYER_OPS]
    listed = list(dict.fromkeys(layers))[::5]
    assert listed
    policy = tmp_path / "mixed.toml"
    policy.write_text(policy_text(low, listed))
    program = casts.explain(binary_dir, name, str(policy))
    graph = graph_of(lockstep, tmp_path, name)
    amp = emit(binary_dir, tmp_path, policy_text(low, listed), graph)
    assert listed == amp.FP32_LAYERS and amp.DTYPE is casts.DTYPES[low]
    keys = list(model.state_dict())
    amp.apply(model)
    with Products(model) as products:
        with amp.autocast("cpu"), casts.Recorder() as recorder:
            loss = model(batch, masks)
        loss.backward()
    theirs, ours = casts.by_op(recorder.ops), formats_of_policy(program, name)
    if name == "detector":  # its twin runs the heads in another order
        theirs, ours = ({op: sorted(made) for op, made in table.items()} for table in (theirs, ours))
    assert theirs == ours
    forward, backward = products_of_policy(program, graph)
    # Attention's matmuls are in no module of the twins.
    in_modules = [
        {pair for pair in pairs if pair[0] in layers}
        for pairs in (products.forward, forward, products.backward, backward)
    ]
    assert in_modules[0] == in_modules[1] and in_modules[2] == in_modules[3]
    assert products.count > len(layers) or name == "lstm"
    assert len({made for _, made in in_modules[0]}) == 2 or name == "lstm"
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())
    assert list(model.state_dict()) == keys
