"""The module of `recommend --emit pytorch` on captured models: formats, bits, names, copies, trainers.

It is written for a capture's graph and applied to the model that was captured.
"""

import ast
import contextlib
import copy
import json
import pickle
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from capture_loops import Classifier, Images, image_batches, image_loss
from lockstep_capture import Capture, read_run
from recipes_in_torch import Products, captured_graph, emit, load, policy_text, products_of_capture

nn = torch.nn
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
STEPS = 3


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


class Cnn(nn.Module):
    """As torchvision's: a stem, stages of residual blocks, a pooled head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.layer1 = nn.Sequential(Residual(4), Residual(4))
        self.fc = nn.Linear(4, 5)

    def forward(self, images):
        return self.fc(F.adaptive_avg_pool2d(self.layer1(self.stem(images)), 1).flatten(1))


class Attention(nn.Module):
    """Takes a mask by keyword and a tuple; returns a dict."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.q, self.kv, self.out = (
            heads,
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, pair, *, mask=None):
        x, memory = pair
        q, (k, v) = self.split(self.q(x)), map(self.split, self.kv(memory).chunk(2, -1))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        return {"y": self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), "scores": scores, "cache": None}


class DecoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.self_attn, self.cross_attn = Attention(width, heads), Attention(width, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.mlp = nn.ModuleDict({"up": nn.Linear(width, 2 * width), "down": nn.Linear(2 * width, width)})

    def forward(self, x, memory, mask):
        n = self.norms[0](x)
        x = x + self.self_attn((n, n), mask=mask)["y"]
        x = x + self.cross_attn((self.norms[1](x), memory))["y"]
        return x + self.mlp["down"](F.gelu(self.mlp["up"](self.norms[2](x))))


class EncoderDecoder(nn.Module):
    def __init__(self, width=8, heads=2, classes=11):
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 16, 0.0, batch_first=True) for _ in range(2)
        )
        self.decoder = nn.ModuleList(DecoderLayer(width, heads) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, source, target):
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        mask = torch.triu(torch.ones(target.shape[1], target.shape[1], dtype=torch.bool), 1)
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        return self.head(x)


def tokens(seed, shape=(3, 6), classes=11):
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed))


def cnn():
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 3, 8, 8, generator=g), torch.randint(0, 5, (4,), generator=g)) for _ in range(STEPS)]
    return Cnn(), batches, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])


def encoder_decoder():
    batches = [(tokens(3 * i), tokens(3 * i + 1), tokens(3 * i + 2)) for i in range(STEPS)]
    return EncoderDecoder(), batches, lambda model, b: F.cross_entropy(model(b[0], b[1]).flatten(0, 1), b[2].flatten())


def gpt2():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(
        vocab_size=11,
        n_embd=8,
        n_layer=2,
        n_head=2,
        n_positions=8,
        initializer_range=0.2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    batches = [{"input_ids": tokens(i), "labels": tokens(i)} for i in range(STEPS)]
    return transformers.GPT2LMHeadModel(config), batches, lambda model, batch: model(**batch).loss


# Layers to keep in FP32: leaves, and blocks whose own operations are products.
NETWORKS = {
    "cnn": (cnn, ["stem.1", "layer1.0", "layer1.1.body.0", "fc"]),
    "encoder_decoder": (
        encoder_decoder,
        [
            "encoder.0.self_attn",
            "encoder.1.linear2",
            "decoder.0.self_attn",
            "decoder.1.cross_attn",
            "decoder.1.cross_attn.q",
            "decoder.0.norms.2",
            "decoder.1.mlp.up",
        ],
    ),
    "gpt2": (gpt2, ["transformer.h.0.attn", "transformer.h.1.mlp.c_proj", "transformer.ln_f", "lm_head"]),
}


@pytest.fixture(scope="module")
def network(request, tmp_path_factory):
    """(name, maker, listed layers, capture of the plain model)"""
    make, listed = NETWORKS[request.param]
    torch.manual_seed(0)
    model, batches, loss_of = make()
    path = tmp_path_factory.mktemp(request.param) / "plain.h5"
    train(model, batches, loss_of, None, capture=path)
    return request.param, make, listed, path


every_network = pytest.mark.parametrize("network", NETWORKS, indirect=True)


def train(model, batches, loss_of, context, capture=None, autocast=None):
    """Three steps; `context`: that of the forward pass. Returns the losses."""
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1, momentum=0.9)
    cap = Capture(str(capture), model, optimizer, loss_of, steps=STEPS, autocast=autocast) if capture else None
    losses = []
    for batch in batches:
        with cap.step(batch) if cap else contextlib.nullcontext():
            with context() if context else contextlib.nullcontext():
                loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def made(make):
    torch.manual_seed(0)
    return make()


def assert_same_training(a, b):
    (losses_a, model_a), (losses_b, model_b) = a, b
    assert all(torch.equal(x, y) for x, y in zip(losses_a, losses_b, strict=True))
    state_a, state_b = model_a.state_dict(), model_b.state_dict()
    assert list(state_a) == list(state_b)
    assert all(torch.equal(state_a[name], state_b[name]) for name in state_a)


@every_network
@pytest.mark.parametrize("low", DTYPES)
def test_every_product_runs_in_the_policys_format(lockstep, binary_dir, tmp_path, network, low):
    name, make, listed, capture = network
    amp = emit(binary_dir, tmp_path, policy_text(low, listed), captured_graph(capture))
    assert sorted(amp.FP32_LAYERS) == sorted(listed)
    model, batches, loss_of = made(make)
    amp.apply(model)
    with Products(model) as products:
        with amp.autocast("cpu"):
            loss = loss_of(model, batches[0])
        loss.backward()
    forward, backward = products_of_capture(lockstep, capture, tmp_path / "policy.toml")
    assert products.forward == forward and products.backward == backward
    assert {layer for layer, _ in forward} & set(listed)
    assert {made for layer, made in {*forward, *backward} if layer in listed} == {"fp32"}
    assert {made for _, made in forward} == {made for _, made in backward} == {"fp32", low}


@every_network
def test_a_captured_run_under_the_module_is_verified(lockstep, binary_dir, tmp_path, network):
    name, make, listed, capture = network
    amp = emit(binary_dir, tmp_path, policy_text("bf16", listed), captured_graph(capture))
    model, batches, loss_of = made(make)
    amp.apply(model)
    train(model, batches, loss_of, lambda: amp.autocast("cpu"), tmp_path / "amp.h5", "bfloat16")
    text = lockstep("verify", tmp_path / "amp.h5").stdout
    assert {line.split()[0]: line.split()[1] for line in text.splitlines() if line[:1] == "V"}["V7"] == "PASS"
    off = {
        node["module"]
        for node in json.loads(captured_graph(tmp_path / "amp.h5"))["nodes"]
        if node["autocast"] and not node["autocast"]["enabled"] and node["op"] != "cast"
    }
    assert off == set(listed)
    found = products_of_capture(lockstep, tmp_path / "amp.h5", "torch-autocast-bf16-cpu")
    assert found == products_of_capture(lockstep, capture, tmp_path / "policy.toml")


@every_network
def test_the_policys_lane_computes_what_a_run_under_the_module_does(lockstep, binary_dir, tmp_path, network):
    """The lane of the policy, on the plain capture, and the lane that repeats the captured run: equal losses."""
    name, make, listed, capture = network
    amp = emit(binary_dir, tmp_path, policy_text("bf16", listed), captured_graph(capture))
    model, batches, loss_of = made(make)
    train(amp.apply(model), batches, loss_of, lambda: amp.autocast("cpu"), tmp_path / "amp.h5", "bfloat16")
    losses = []
    for path, lane in ((capture, tmp_path / "policy.toml"), (tmp_path / "amp.h5", "torch-autocast-bf16-cpu")):
        lockstep("replay", path, "--lanes", f"fp32,{lane}", "-o", tmp_path / "run.h5", "--overwrite", "--quiet")
        losses.append(read_run(str(tmp_path / "run.h5")).steps["loss"].unstack("lane"))
    ours, theirs = (table[next(lane for lane in table if lane not in ("fp32", "twin", "captured"))] for table in losses)
    assert len(ours) == STEPS and list(ours) == list(theirs) and list(ours) != list(losses[0]["fp32"])


class ByHand(Cnn):
    """Cnn with layer1.0, its convolution, and fc in FP32, as one writes it."""

    def forward(self, images):
        x = self.stem(images)
        first, second = self.layer1
        with torch.autocast("cpu", enabled=False):
            wide = x.float()
            with torch.autocast("cpu", torch.bfloat16):
                y = first.body[2](first.body[1](first.body[0](wide)))
            with torch.autocast("cpu", enabled=False):
                y = first.body[3](y.float())
            x = torch.relu(wide + y)
        x = F.adaptive_avg_pool2d(second(x), 1).flatten(1)
        with torch.autocast("cpu", enabled=False):
            return self.fc(x.float())


def test_training_is_bit_for_bit_that_of_regions_by_hand(binary_dir, tmp_path):
    model, batches, loss_of = made(cnn)
    train(model, batches, loss_of, None, tmp_path / "cnn.h5")
    amp = emit(
        binary_dir,
        tmp_path,
        policy_text("bf16", ["layer1.0", "layer1.0.body.3", "fc"]),
        captured_graph(tmp_path / "cnn.h5"),
    )
    ours = made(cnn)[0]
    amp.apply(amp.apply(ours))  # the second call changes nothing
    torch.manual_seed(0)
    theirs = ByHand()
    losses = [train(m, batches, loss_of, lambda: amp.autocast("cpu")) for m in (ours, theirs)]
    assert_same_training((losses[0], ours), (losses[1], theirs))
    plain = made(cnn)[0]
    assert not torch.equal(train(plain, batches, loss_of, lambda: amp.autocast("cpu"))[-1], losses[0][-1])


class CallsForward(nn.Module):
    """As layers of PyTorch Geometric: the operations of `second` count as those of the caller."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.first(x) + self.second.forward(x)


@pytest.mark.parametrize("listed", [["both"], ["both.first"], ["both", "both.first"]])
def test_a_direct_call_of_forward_is_the_callers(lockstep, binary_dir, tmp_path, listed):
    def make():
        return nn.ModuleDict({"both": CallsForward()})

    def loss_of(model, batch):
        return model["both"](batch).float().square().mean()

    torch.manual_seed(0)
    batches = [torch.randn(3, 4) for _ in range(STEPS)]
    train(make(), batches, loss_of, None, tmp_path / "plain.h5")
    amp = emit(binary_dir, tmp_path, policy_text("bf16", listed), captured_graph(tmp_path / "plain.h5"))
    assert sorted(amp.FP32_LAYERS) == sorted(listed)
    model = amp.apply(make())
    with Products(model) as products, amp.autocast("cpu"):
        loss_of(model, batches[0])
    forward, _ = products_of_capture(lockstep, tmp_path / "plain.h5", tmp_path / "policy.toml")
    assert products.forward == forward
    assert [layer for layer, _ in products.forward] == ["both.first", "both"]


@pytest.fixture(scope="module")
def small(binary_dir, tmp_path_factory):
    """A recipe for Images with `fc` in FP32 and a static scale, as a file."""
    folder = tmp_path_factory.mktemp("small")
    torch.manual_seed(0)
    train(Images(), image_batches(STEPS), image_loss, None, folder / "images.h5")
    emit(
        binary_dir,
        folder,
        policy_text("fp16", ["fc"], '[loss_scale]\nkind = "static"\ninit_scale = 8.0\n'),
        captured_graph(folder / "images.h5"),
    )
    return folder / "amp.py"


def test_without_autocast_nothing_changes(small):
    amp, x = load(small), image_batches(1)[0][0]
    plain = Images().eval()
    ours = amp.apply(copy.deepcopy(plain))
    assert torch.equal(ours(x), plain(x))
    half = Images().half().eval()
    with pytest.raises(ValueError, match="'fc': has 16-bit parameters"):
        amp.apply(half)


def test_copies_and_pickles_have_their_own_weights(small, monkeypatch):
    amp, x = load(small), image_batches(1)[0][0]
    monkeypatch.setitem(sys.modules, "amp", amp)
    model = amp.apply(Images().eval())
    calls = []
    model.fc.register_forward_hook(lambda module, args, y: calls.append(y.dtype))
    forward = model.fc.forward
    assert amp.apply(model).fc.forward is forward
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(amp.apply(Images().eval())))):
        with torch.no_grad():
            other.fc.weight.zero_()
            other.fc.bias.zero_()
        with amp.autocast("cpu"):
            y = other(x)
        assert y.dtype == torch.float32 and not y.any()
    with amp.autocast("cpu"):
        assert model(x).any()
    assert calls and set(calls) == {torch.float32}, "hooks stay"


def test_an_error_in_a_layer_restores_autocast(small):
    amp, x = load(small), image_batches(1)[0][0]
    model = amp.apply(Images())
    with amp.autocast("cpu"):
        with pytest.raises(RuntimeError):
            model.fc(x[..., :3])
        assert torch.is_autocast_enabled("cpu") and amp._state.outside is None


def test_a_missing_module_is_named_with_its_neighbours(small):
    with pytest.raises(ValueError, match=r"'fc': not in the model; close: \['module.fc'\]"):
        load(small).apply(nn.ModuleDict({"module": Images()}))


def test_the_static_scale_stays(small):
    amp = load(small)
    weight = nn.Parameter(torch.ones(3))
    scaler, optimizer = amp.scaler("cpu"), torch.optim.SGD([weight], lr=0.5)
    for gradient, moved in ((float("inf"), False), (1.0, True), (float("nan"), False)):
        before = weight.detach().clone()
        scaler.scale((weight * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert scaler.get_scale() == 8.0 and bool((weight != before).all()) == moved


def test_a_dynamic_scale_has_the_policys_numbers(binary_dir, tmp_path, small):
    numbers = {"init_scale": 1024.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 7}
    table = '[loss_scale]\nkind = "torch-dynamic"\n' + "".join(f"{name} = {value}\n" for name, value in numbers.items())
    amp = emit(binary_dir, tmp_path, policy_text("fp16", [], table), (small.parent / "graph.json").read_text())
    assert numbers == amp.SCALER and amp.FP32_LAYERS == []
    state = amp.scaler("cpu").state_dict()
    assert (state["scale"], state["growth_interval"]) == (1024.0, 7)
    none = emit(binary_dir, tmp_path, policy_text("bf16", []), (small.parent / "graph.json").read_text())
    assert none.SCALER is None and not none.scaler("cpu").is_enabled()


# Control characters never get here: graphs that contain them are refused.
HOSTILE = ['a"b', "a'b", '"""', "back\\slash", "\\", "\\n", "é😀", '"+str(1/0)+"']


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_inert(binary_dir, tmp_path, small, name):
    graph = json.loads((small.parent / "graph.json").read_text())
    for node in graph["nodes"]:
        if node["module"] == "fc":
            node["module"] = name
    graph["name"] = name
    policy = policy_text("fp16", ["*"], '[loss_scale]\nkind = "none"\n')
    amp = emit(binary_dir, tmp_path, policy, json.dumps(graph))
    assert name in amp.FP32_LAYERS
    tree = ast.parse((tmp_path / "amp.py").read_text())
    listed = next(
        node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "FP32_LAYERS"
    )
    assert ast.literal_eval(listed) == amp.FP32_LAYERS
    assert [type(node) for node in tree.body] == [type(node) for node in ast.parse(small.read_text()).body]
    model = nn.ModuleDict({layer: nn.Linear(2, 2) for layer in amp.FP32_LAYERS if "." not in layer})
    if len(model) == len(amp.FP32_LAYERS):
        amp.apply(model)
        with amp.autocast("cpu"):
            assert model[name](torch.ones(2)).dtype == torch.float32


def test_recommend_writes_the_module_and_replaces_no_file(lockstep, tmp_path):
    run, out = tmp_path / 'run """\n\\x.h5', tmp_path / "amp.py"
    lockstep("replay", "mlp", "--data", "synthetic:100", "--steps", 2, "--batch", 4, "-o", run, "--quiet")
    lockstep("recommend", run, "--emit", "pytorch", out)
    amp = load(out)
    assert amp.DTYPE is torch.float16 and amp.SCALER and "Evidence: exponent histograms" in amp.__doc__
    text = out.read_text()
    assert "exists" in lockstep("recommend", run, "--emit", "pytorch", out, code=2).stderr
    assert "ends in .py" in lockstep("recommend", run, "--emit", "pytorch", tmp_path / "amp.txt", code=2).stderr
    lockstep("recommend", run, "--formats", "bf16", "--emit", "pytorch", out, "--overwrite")
    assert load(out).DTYPE is torch.bfloat16 and out.read_text() != text


def test_several_files_are_written_and_explain_writes_the_same(lockstep, tmp_path):
    run, policy = tmp_path / "r.h5", tmp_path / "policy.toml"
    lockstep("replay", "mlp", "--data", "synthetic:100", "--steps", 2, "--batch", 4, "-o", run, "--quiet")
    kinds = {"pytorch": "one.py", "fsdp2": "two.py", "megatron": "three.sh", "te-debug": "four.yaml"}
    words = [word for kind, file in kinds.items() for word in ("--emit", kind, tmp_path / file)]
    said = lockstep("recommend", run, "-o", policy, *words).stdout
    texts = {file: (tmp_path / file).read_text() for file in kinds.values()}
    assert all(f"Wrote {tmp_path / file}" in said.replace("\n", "") for file in texts)
    assert "exists" in lockstep("explain", "mlp", "--policy", policy, *words, code=2).stderr
    lockstep("explain", "mlp", "--policy", policy, *words, "--overwrite")
    for file, text in texts.items():
        again = (tmp_path / file).read_text()
        cut = "\nEvidence" if file.endswith(".py") else "# Evidence"
        assert cut in text and cut not in again
        lines, evidence = text.splitlines(), text.count("\n") - again.count("\n")
        start = next(i for i, (a, b) in enumerate(zip(lines, again.splitlines())) if a != b)
        assert 2 <= evidence <= 4 and lines[:start] + lines[start + evidence :] == again.splitlines()
    lost = tmp_path / "bad.toml"
    lost.write_text('[[rule]]\nlayer = "nowhere"\ncompute = "bf16"\n')
    assert (
        "nowhere"
        in lockstep("explain", "mlp", "--policy", lost, "--emit", "pytorch", tmp_path / "bad.py", code=2).stderr
    )
    assert not (tmp_path / "bad.py").exists()


def test_what_was_run_is_the_evidence(lockstep, tmp_path):
    lockstep(
        "recommend",
        "mlp",
        "--data",
        "synthetic:400",
        "--steps",
        60,
        "--batch",
        16,
        "--formats",
        "bf16",
        "--quiet",
        "--emit",
        "pytorch",
        "amp.py",
        cwd=tmp_path,
    )
    amp = load(tmp_path / "amp.py")
    assert (
        amp.DTYPE is torch.bfloat16 and amp.SCALER is None and "trained as fp32 did in 60 steps of mlp" in amp.__doc__
    )


# ---- Trainers


def amp_for(folder, source, low):
    """The module of `source` for a model in which Images is `net`, without a loss scale in BF16."""
    text = source.read_text().replace('"fc",', '"net.fc",')
    if low == "bf16":
        text = text.replace("DTYPE = torch.float16", "DTYPE = torch.bfloat16").replace(
            "SCALER = {", "SCALER = None\n_ = {"
        )
    (folder / "amp.py").write_text(text)
    return load(folder / "amp.py")


def seen_by(layer):
    """The formats that a layer returns while it trains."""
    formats = set()
    layer.register_forward_hook(lambda module, args, y: formats.add((y.dtype, torch.is_autocast_enabled("cpu"))))
    return formats


def test_the_trainer_of_transformers(tmp_path, small, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    amp, data = (
        amp_for(tmp_path, small, "bf16"),
        [{"images": x, "labels": y} for b in image_batches(4) for x, y in zip(*b)],
    )

    def trained(callbacks, before=lambda model: None, **options):
        torch.manual_seed(0)
        model = Classifier()
        before(model)
        formats = [seen_by(model.net.fc), seen_by(model.net.conv)]
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            max_steps=3,
            per_device_train_batch_size=4,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            **options,
        )
        transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks).train()
        return formats, model

    formats, model = trained([amp.trainer_callback()], bf16=True)
    assert formats == [{(torch.float32, True)}, {(torch.bfloat16, True)}]
    assert_same_training(([], model), ([], trained([], amp.apply, bf16=True)[1]))
    with pytest.raises(ValueError, match="TrainingArguments needs bf16=True"):
        trained([amp.trainer_callback()])


def test_the_trainer_of_lightning(tmp_path, small):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    amp = amp_for(tmp_path, small, "bf16")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Images()

        def training_step(self, batch, index):
            return image_loss(self.net, batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def trained(callbacks, before=lambda model: None, precision="bf16-mixed"):
        torch.manual_seed(0)
        module = Module()
        before(module)
        formats = [seen_by(module.net.fc), seen_by(module.net.conv)]
        trainer = lightning.Trainer(
            max_steps=3,
            accelerator="cpu",
            precision=precision,
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, torch.utils.data.DataLoader(image_batches(4), batch_size=None))
        return formats, module

    formats, module = trained([amp.lightning_callback()])
    assert formats == [{(torch.float32, True)}, {(torch.bfloat16, True)}]
    assert_same_training(([], module), ([], trained([], amp.apply)[1]))
    with pytest.raises(ValueError, match="needs precision='bf16-mixed', not '32-true'"):
        trained([amp.lightning_callback()], precision="32-true")


def test_a_trainers_scaler_gets_the_numbers(tmp_path, small):
    """No Trainer runs FP16 on a CPU, so their scaler is one of ours."""
    amp = amp_for(tmp_path, small, "fp16")
    for scaler, step, scale in (
        (torch.amp.GradScaler("cpu"), 0, 8.0),
        (torch.amp.GradScaler("cpu"), 5, 65536.0),
        (None, 0, None),
    ):
        pytest.importorskip("transformers", reason="transformers is not installed")
        amp.trainer_callback().on_train_begin(
            types.SimpleNamespace(fp16=True, bf16=False),
            types.SimpleNamespace(global_step=step),
            None,
            model=Classifier(),
            optimizer=types.SimpleNamespace(scaler=scaler),
        )
        assert scaler is None or scaler.get_scale() == scale
    pytest.importorskip("lightning", reason="lightning is not installed")
    scaler = torch.amp.GradScaler("cpu")
    trainer = types.SimpleNamespace(precision="16-mixed", precision_plugin=types.SimpleNamespace(scaler=scaler))
    amp.lightning_callback().on_fit_start(trainer, Classifier())
    assert scaler.get_scale() == 8.0 and scaler.get_growth_interval() == 2**31 - 1
