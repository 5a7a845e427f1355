"""Modules of `--emit fsdp2` on one rank of gloo: formats of parameters, products and gradients are the policy's."""

import pytest
import torch
import torch.distributed as dist
from recipes_in_torch import Products, captured_graph, emit, products_of_capture
from test_pytorch_module import NETWORKS, made, train

nn = torch.nn
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("gloo") / "store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    dist.destroy_process_group()


class Tied(nn.Module):
    """A decoder in small: embedding shared with the head, norms, a parameter of the model itself."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(16, 32), nn.LayerNorm(32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(2))
        self.head = nn.Linear(32, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        h = self.embed(tokens)
        for block in self.blocks:
            h = h + block(h)
        return self.head(self.norm(h))


def tied():
    g = torch.Generator().manual_seed(3)
    batches = [(torch.randint(16, (4, 8), generator=g), torch.randint(16, (4, 8), generator=g)) for _ in range(3)]
    return Tied(), batches, lambda m, b: nn.functional.cross_entropy(m(b[0]).flatten(0, 1), b[1].flatten())


CASES = {"tied": tied, "cnn": NETWORKS["cnn"][0]}


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    paths = {}
    for name, network in CASES.items():
        paths[name] = tmp_path_factory.mktemp(name) / "plain.h5"
        model, batches, loss_of = made(network)
        train(model, batches, loss_of, None, capture=paths[name])
    return paths


def blocks_of(model):
    return getattr(model, "blocks", [])


def whole(gradient):
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


@pytest.mark.parametrize("name,layer", [("tied", "blocks.1.1"), ("cnn", "fc")])
@pytest.mark.parametrize("low", ["bf16", "fp16"])
def test_under_autocast_products_loss_and_gradients_are_those_without_shards(
    lockstep, binary_dir, tmp_path, captures, name, layer, low
):
    policy = f'extends = "torch-autocast-{low}-cpu:2.13"\n[[rule]]\nlayer = "{layer}"\ncompute = "fp32"\n'
    amp = emit(binary_dir, tmp_path, policy, captured_graph(captures[name]), "fsdp2")
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}[low]
    assert (narrow, torch.float32, False) == (amp.PARAM_DTYPE, amp.REDUCE_DTYPE, amp.CAST_FORWARD_INPUTS)
    assert amp.SHARDED_DTYPES[layer] is torch.float32
    plain, batches, loss_of = made(CASES[name])
    amp.apply(plain)
    with amp.autocast("cpu"):
        expected = loss_of(plain, batches[0])
    expected.backward()
    model = amp.apply(made(CASES[name])[0])
    assert amp.shard(model, blocks_of(model)) is model
    seen = {}
    for path, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_pre_hook(
                lambda m, _, path=path: seen.update({path: next(m.parameters(recurse=False)).dtype})
            )
    with Products(model) as products:
        with amp.autocast("cpu"):
            loss = loss_of(model, batches[0])
        loss.backward()
    forward, backward = products_of_capture(lockstep, captures[name], tmp_path / "policy.toml")
    assert products.forward == forward and products.backward == backward
    wide = set(amp.SHARDED_DTYPES) | ({"head"} if name == "tied" else set())  # the head shares the embedding's weight
    assert {path for path, dtype in seen.items() if dtype is torch.float32} == wide and len(seen) > len(wide)
    assert torch.equal(loss, expected)
    for (path, p), q in zip(model.named_parameters(), plain.parameters()):
        assert p.dtype == p.grad.dtype == torch.float32, path
        assert torch.equal(whole(p.grad), q.grad), path


def test_narrow_weights_with_masters_are_copies_of_fsdp2(lockstep, binary_dir, tmp_path, captures):
    policy = 'extends = "pure-bf16-master"\n[all_reduce]\nformat = "fp32"\n'
    amp = emit(binary_dir, tmp_path, policy, captured_graph(captures["tied"]), "fsdp2")
    assert (torch.bfloat16, torch.float32, {}) == (amp.PARAM_DTYPE, amp.REDUCE_DTYPE, amp.SHARDED_DTYPES)
    said = " ".join(amp.__doc__.split())
    assert "masters of" not in said and "weights in" not in said and "buffers in bf16" in said and amp.DTYPE is None
    model, batches, loss_of = made(CASES["tied"])
    by_hand = made(CASES["tied"])[0].bfloat16()
    amp.shard(amp.apply(model), blocks_of(model))
    with Products(model) as products:
        loss = loss_of(model, batches[0])
        loss.backward()
    assert {dtype for _, dtype in products.forward} == {dtype for _, dtype in products.backward} == {"bf16"}
    expected = loss_of(by_hand, batches[0])
    expected.backward()
    assert loss.dtype == torch.bfloat16 and torch.equal(loss, expected)
    for p, q in zip(model.parameters(), by_hand.parameters()):
        assert p.dtype == p.grad.dtype == torch.float32 and torch.equal(whole(p.grad), q.grad.float())


def test_gradients_are_reduced_in_the_policys_format(binary_dir, tmp_path, captures):
    """Those of norms and of the layer in FP32 lose bits in BF16."""
    policy = 'extends = "torch-autocast-bf16-cpu:2.13"\n[[rule]]\nlayer = "blocks.1.1"\ncompute = "fp32"\n'
    gradients = {}
    for reduced in ("bf16", "fp32"):
        more = f'[all_reduce]\nformat = "{reduced}"\n'
        amp = emit(binary_dir, tmp_path, policy + more, captured_graph(captures["tied"]), "fsdp2")
        model, batches, loss_of = made(CASES["tied"])
        amp.shard(amp.apply(model), blocks_of(model))
        with amp.autocast("cpu"):
            loss = loss_of(model, batches[0])
        loss.backward()
        gradients[reduced] = {path: whole(p.grad) for path, p in model.named_parameters()}
    same = {path: torch.equal(g, gradients["fp32"][path]) for path, g in gradients["bf16"].items()}
    assert all(torch.equal(g, gradients["fp32"][path].bfloat16().float()) for path, g in gradients["bf16"].items())
    assert not same["blocks.1.1.weight"] and not same["norm.weight"] and same["blocks.0.1.weight"]


def test_without_a_format_gradients_are_reduced_in_their_own(binary_dir, tmp_path, captures):
    amp = emit(binary_dir, tmp_path, 'extends = "pure-bf16-master"\n', captured_graph(captures["tied"]), "fsdp2")
    assert amp.REDUCE_DTYPE is torch.bfloat16  # written out: what None means depends on torch's version
    narrow = emit(
        binary_dir,
        tmp_path,
        'extends = "torch-autocast-bf16-cpu:2.13"\n[all_reduce]\nformat = "fp8_e5m2"\n',
        captured_graph(captures["tied"]),
        "fsdp2",
    )
    assert narrow.REDUCE_DTYPE is torch.float32 and "Gradients are reduced in fp8_e5m2" in " ".join(
        narrow.__doc__.split()
    )


def test_names_that_the_model_lacks_are_refused(binary_dir, tmp_path, captures):
    amp = emit(
        binary_dir, tmp_path, 'extends = "torch-autocast-bf16-cpu:2.13"\n', captured_graph(captures["tied"]), "fsdp2"
    )
    model = made(CASES["tied"])[0]
    del model.norm
    with pytest.raises(ValueError, match="'norm': not in the model"):
        amp.shard(model)
