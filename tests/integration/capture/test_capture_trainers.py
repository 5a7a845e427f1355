"""The callbacks for the Trainer of Transformers and for Lightning's: the real ones train, with and without them."""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
import warnings

import h5py
import lockstep_capture
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from capture_loops import Classifier, Images, image_batches, image_loss
from lockstep_capture import CaptureError, UnsupportedModelError

nn = torch.nn
torch.set_num_threads(1)
LANES = "fp32,torch-autocast-fp16,torch-autocast-bf16"
STEPS = 3  # captured; the runs have more
pytestmark = pytest.mark.filterwarnings("ignore")


def same(a, b):
    """Losses and everything that training left, bit for bit."""
    assert len(a) == len(b) and all(torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in zip(a, b))


def accepted(lockstep, path, tmp_path):
    """`verify` passes and the lanes run. Returns (losses of the lane fp32, losses of the captured run)."""
    lockstep("verify", path)
    lockstep("replay", path, "--lanes", LANES, "-o", tmp_path / "run.h5", "--quiet", "--overwrite")
    losses = lockstep_capture.read_run(str(tmp_path / "run.h5")).steps["loss"].unstack("lane")
    assert losses.notna().all(axis=None) and len(losses) == STEPS
    return losses["fp32"].to_numpy(), losses["captured"].to_numpy()


def micro_counts(path):
    with h5py.File(path) as file:
        return [len(file[f"steps/{step}/micro"]) for step in sorted(file["steps"])]


def nothing_is_left_replaced():
    from torch.nn.utils import clip_grad

    for owner, name, module in (
        (torch.autograd, "backward", "torch.autograd"),
        (clip_grad, "_get_total_norm", "torch.nn.utils.clip_grad"),
    ):
        assert getattr(owner, name).__module__ == module
    assert torch.autocast.__enter__.__module__ == "torch.amp.autocast_mode"


# ---- Transformers


@pytest.fixture
def transformers(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    return pytest.importorskip("transformers", reason="transformers is not installed")


def gpt2(transformers):
    """A language model: it takes num_items_in_batch."""
    config = transformers.GPT2Config(
        vocab_size=31, n_embd=16, n_layer=2, n_head=2, n_positions=12, initializer_range=0.2
    )
    return transformers.GPT2LMHeadModel(config)


def texts(count=40, length=8):
    """Of each text another number of tokens counts."""
    g = torch.Generator().manual_seed(2)
    rows = [torch.randint(0, 31, (length,), generator=g) for _ in range(count)]
    return [
        {"input_ids": row, "labels": torch.where(torch.arange(length) < 3 + i % 5, row, -100)}
        for i, row in enumerate(rows)
    ]


def images():
    return [{"images": x, "labels": y} for batch in image_batches(6) for x, y in zip(*batch)]


def trainer_of(transformers, folder, callbacks, model=None, data=None, kind=None, **options):
    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        str(folder),
        **{
            "max_steps": STEPS + 2,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-2,
            "warmup_steps": 2,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            **options.pop("arguments", {}),
        },
    )
    return (kind or transformers.Trainer)(
        model=model or gpt2(transformers), args=arguments, train_dataset=data or texts(), callbacks=callbacks, **options
    )


def left_by(trainer):
    """Logged losses and norms, weights, the optimizer's state, the state of the generator."""
    logs = [
        entry[key] for entry in trainer.state.log_history for key in ("loss", "grad_norm", "eval_loss") if key in entry
    ]
    assert len(logs) >= 2 * trainer.args.max_steps
    states = [value for state in trainer.optimizer.state.values() for value in state.values()]
    return [*logs, *trainer.model.state_dict().values(), *states, torch.get_rng_state()]


TRAINERS = {
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1},
    "unclipped": {"max_grad_norm": 0.0, "gradient_accumulation_steps": 3},
    "bf16": {"bf16": True, "gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine", "weight_decay": 0.1},
    "smoothed": {"label_smoothing_factor": 0.1, "bf16": True},
}


@pytest.mark.parametrize(
    "kind, name",
    [*(("text", name) for name in TRAINERS), *(("images", name) for name in TRAINERS if name != "smoothed")],
)
def test_hugging_face(transformers, lockstep, tmp_path, name, kind):
    path, arguments = tmp_path / "a.lscap.h5", TRAINERS[name]

    def trained(callbacks):
        model, data = (gpt2, texts()) if kind == "text" else (lambda _: Classifier(), images())
        torch.manual_seed(0)
        trainer = trainer_of(transformers, tmp_path, callbacks, model(transformers), data, arguments=arguments)
        trainer.train()
        return trainer

    trainer = trained([lockstep_capture.hugging_face.CaptureCallback(path, steps=STEPS)])
    same(left_by(trainer), left_by(trained([])))
    assert not {"compute_loss", "_run_epoch"} & set(vars(trainer))
    nothing_is_left_replaced()
    accumulated = arguments.get("gradient_accumulation_steps", 1)
    assert micro_counts(path) == [accumulated] * STEPS
    with h5py.File(path) as file:
        nodes = json.loads(bytes(file["graphs/0/json"][()]))["nodes"]
        regions = {node["autocast"]["dtype"] for node in nodes if (node["autocast"] or {}).get("enabled")}
    assert regions == ({"bfloat16"} if arguments.get("bf16") else set())
    losses, captured = accepted(lockstep, path, tmp_path)
    # A language model's loss is divided by the tokens of the whole step: the step's loss is the sum, not the mean.
    logged = np.array([entry["loss"] for entry in trainer.state.log_history if "loss" in entry][:STEPS])
    shares = accumulated if kind == "text" else 1
    ulp = 2.0**-8 if arguments.get("bf16") else 2.0**-23
    assert np.allclose(captured * shares, logged, rtol=accumulated * 2.0**-23, atol=0)
    assert np.allclose(losses * shares, logged, rtol=8 * ulp, atol=0)


@pytest.mark.parametrize("name", ["plain", "accumulated", "bf16"])
def test_hugging_face_takes_a_step_again(transformers, lockstep, tmp_path, name):
    path, arguments = tmp_path / "a.lscap.h5", TRAINERS[name]

    def trained(callbacks):
        torch.manual_seed(0)
        trainer = trainer_of(transformers, tmp_path, callbacks, arguments=arguments)
        trainer.train()
        return trainer

    callback = lockstep_capture.hugging_face.CaptureCallback(path, when=[2], times=1)
    trainer = trained([callback])
    same(left_by(trainer), left_by(trained([])))
    nothing_is_left_replaced()
    taken = tmp_path / "a.step000002.lscap.h5"
    assert micro_counts(taken) == [arguments.get("gradient_accumulation_steps", 1)]
    assert "V0  PASS" in lockstep("verify", taken).stdout


def parts_of(folder):
    """The rows of the list of rank 0: all captured, all as in the run."""
    rows = json.loads((folder / "rank0" / "parts.json").read_text(encoding="utf-8"))["parts"]
    assert {(row["status"], row["output"]) for row in rows} == {("captured", "bit-exact")}, rows
    return rows


@pytest.mark.parametrize("name", ["accumulated", "bf16"])
def test_hugging_face_parts(transformers, lockstep, tmp_path, name):
    """The blocks get a cache of keys and values, as Transformers passes one unless use_cache is False."""
    arguments, folder = TRAINERS[name], tmp_path / "parts"

    def trained(callbacks):
        torch.manual_seed(0)
        trainer = trainer_of(transformers, tmp_path, callbacks, gpt2(transformers), texts(), arguments=arguments)
        trainer.train()
        return trainer

    callback = lockstep_capture.hugging_face.PartsCallback(folder, ["transformer.h.1"], skip=1, quiet=True)
    trainer = trained([callback])
    same(left_by(trainer), left_by(trained([])))
    assert not {"compute_loss", "_run_epoch"} & set(vars(trainer))
    nothing_is_left_replaced()
    (row,) = parts_of(folder)
    assert row["step"] == 1 and row["calls"] == arguments.get("gradient_accumulation_steps", 1)
    lockstep("verify", folder)


class Fails(Exception):
    pass


def test_hugging_face_epochs_evaluations_and_a_short_step(transformers, lockstep, tmp_path):
    """Five batches an epoch: steps of 3, 2, 3, 2 micro-batches, each evaluated, by a callback that was added later."""

    def trained(path):
        kept = trainer_of(
            transformers,
            tmp_path,
            [],
            data=texts(20),
            eval_dataset=texts(4),
            arguments={"gradient_accumulation_steps": 3, "eval_strategy": "steps", "eval_steps": 1},
        )
        if path:
            kept.add_callback(lockstep_capture.hugging_face.CaptureCallback(path, steps=STEPS))
        kept.train()
        return left_by(kept)

    same(trained(tmp_path / "a.lscap.h5"), trained(None))
    assert micro_counts(tmp_path / "a.lscap.h5") == [3, 2, 3]
    accepted(lockstep, tmp_path / "a.lscap.h5", tmp_path)


def mean_of(outputs, labels, num_items_in_batch=None):
    """A loss that is computed outside of the model, and of its autocast."""
    return F.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction="sum") / num_items_in_batch


@pytest.mark.parametrize("arguments", [{}, {"bf16": True, "gradient_accumulation_steps": 2}], ids=["fp32", "bf16"])
@pytest.mark.parametrize("how", ["compute_loss_func", "a Trainer of the user's"])
def test_hugging_face_with_a_loss_of_the_users(transformers, lockstep, tmp_path, how, arguments):
    class Own(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            labels = inputs.pop("labels")
            logits = model(**inputs).logits
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 1e-3 * logits.square().mean()

    options = {"compute_loss_func": mean_of} if how == "compute_loss_func" else {"kind": Own}

    def trained(callbacks):
        kept = trainer_of(transformers, tmp_path, callbacks, arguments=arguments, **options)
        kept.train()
        return left_by(kept)

    path = tmp_path / "a.lscap.h5"
    same(trained([lockstep_capture.hugging_face.CaptureCallback(path, steps=STEPS)]), trained([]))
    accepted(lockstep, path, tmp_path)


@pytest.mark.parametrize(
    "event", ["on_pre_optimizer_step", "on_substep_end", "on_step_begin", "on_step_end", "on_epoch_begin"]
)
@pytest.mark.parametrize("error", [Fails, KeyboardInterrupt])
def test_hugging_face_after_an_error(transformers, lockstep, tmp_path, event, error):
    """In the third step, in a block and between two: the file has the steps before it, and the Trainer trains again."""

    class Fail(transformers.TrainerCallback):
        armed = True

    def fail(self, args, state, control, **kwargs):
        if self.armed and state.global_step == 2:
            raise error("no")

    setattr(Fail, event, fail)
    path = tmp_path / "a.lscap.h5"
    capture = lockstep_capture.hugging_face.CaptureCallback(path, steps=4)
    trainer = trainer_of(
        transformers, tmp_path, [capture, Fail()], data=texts(16), arguments={"gradient_accumulation_steps": 2}
    )
    with pytest.raises(error, match="no"):
        trainer.train()
    nothing_is_left_replaced()
    assert "compute_loss" not in vars(trainer)
    if event == "on_epoch_begin":
        return  # the capture is still open: no error reached it
    assert "_run_epoch" not in vars(trainer)
    assert micro_counts(path) == [2, 2]
    lockstep("verify", path)
    Fail.armed = False
    trainer.train()
    assert micro_counts(path) == [2] * 4


def test_hugging_face_after_the_captured_steps(transformers, tmp_path):
    seen = {}

    class Look(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            seen[state.global_step] = "compute_loss" in vars(trainer)

    capture = lockstep_capture.hugging_face.CaptureCallback(tmp_path / "a.lscap.h5", steps=2)
    trainer = trainer_of(transformers, tmp_path, [capture, Look()])
    trainer.train()
    assert seen == {0: True, 1: True, 2: False, 3: False, 4: False}
    free_of_cost(lambda: capture.on_optimizer_step(None, None, None))


def free_of_cost(call):
    start = time.perf_counter()
    for _ in range(10_000):
        call()
    each = (time.perf_counter() - start) / 10_000
    print(f"a callback after the captured steps: {each * 1e6:.2f} us")
    assert each < 1e-4


class Refused(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Images()

    def forward(self, images, labels):
        return {"loss": F.cross_entropy(torch.erfinv(self.net(images).tanh()), labels % 3)}


def test_hugging_face_refusals(transformers, tmp_path, monkeypatch):
    made = lockstep_capture.hugging_face.CaptureCallback
    path = tmp_path / "a.lscap.h5"
    with pytest.raises(CaptureError, match="called by no transformers.Trainer"):
        made(path).on_train_begin(None, None, None)
    with pytest.raises(CaptureError, match="no-such-folder does not exist"):
        trainer_of(transformers, tmp_path, [made(tmp_path / "no-such-folder" / "a.h5")]).train()
    with pytest.raises(UnsupportedModelError, match="aten.erfinv"):
        trainer_of(transformers, tmp_path, [made(path)], Refused(), images()).train()
    with monkeypatch.context() as patch:
        patch.setattr(transformers.TrainingArguments, "n_gpu", 2)
        with pytest.raises(CaptureError, match="2 GPUs in one process"):
            kept = trainer_of(transformers, tmp_path, [made(path)])
            patch.setattr(kept, "_wrap_model", lambda model: model)
            kept.train()
    kept = trainer_of(transformers, tmp_path, [])
    kept.is_deepspeed_enabled = True
    callback = made(path)
    callback._trainer = kept
    with pytest.raises(CaptureError, match="uses DeepSpeed"):
        callback._capture()
    with monkeypatch.context() as patch:
        patch.delattr(transformers.Trainer, "_run_epoch")
        with pytest.raises(CaptureError, match="has no _run_epoch"):
            trainer_of(transformers, tmp_path, [made(path)]).train()
    nothing_is_left_replaced()
    assert not path.exists()


def test_hugging_face_reports_and_trains_on(transformers, tmp_path):
    def trained(callbacks):
        torch.manual_seed(0)
        kept = trainer_of(transformers, tmp_path, callbacks, Refused(), images())
        kept.train()
        return left_by(kept)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reported = trained([lockstep_capture.hugging_face.CaptureCallback(tmp_path / "a.h5", on_unsupported="report")])
    assert sum("aten.erfinv" in str(warning.message) for warning in caught) == 1
    same(reported, trained([]))
    assert not (tmp_path / "a.h5").exists()


# ---- Lightning


@pytest.fixture
def lightning():
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    pytest.skip("neither lightning nor pytorch-lightning is installed")


def module_of(lightning, training_step=None, **more):
    """An image classifier whose training_step logs, keeps losses and returns a dict."""

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.kept = Images(), []

        def training_step(self, batch, batch_idx):
            loss = image_loss(self.net, batch)
            self.kept.append(loss.detach())
            self.log("loss", loss)
            self.log_dict({"square": loss.square()}, on_epoch=True)
            return {"loss": loss, "index": batch_idx}

        def validation_step(self, batch, batch_idx):
            self.log("validation", image_loss(self.net, batch))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2), "interval": "step"}]

    if training_step is not None:
        Module.training_step = training_step
    for name, value in more.items():
        setattr(Module, name, value)
    torch.manual_seed(0)
    return Module()


def fitted(lightning, callbacks, module=None, batches=12, **options):
    """Returns the losses and all else that training left, the Trainer's own metrics too."""
    module = module or module_of(lightning)
    trainer = lightning.Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": callbacks,
            **options,
        }
    )
    made = [torch.utils.data.DataLoader(image_batches(count), batch_size=None) for count in (batches, 2)]
    trainer.fit(module, *made)
    states = [value for state in trainer.optimizers[0].state.values() for value in state.values()]
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return [
        *module.kept,
        *module.state_dict().values(),
        *states,
        torch.get_rng_state(),
        *(value for _, value in sorted(trainer.callback_metrics.items())),
        scaler.get_scale() if scaler else 1.0,
    ]


def fp16(lightning):
    """The Trainer's own "16-mixed" is for GPUs."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2)
    precision = importlib.import_module(f"{lightning.__name__}.plugins.precision")
    return {
        "plugins": [precision.MixedPrecision("16-mixed", "cpu", scaler)],
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.1,
    }


@pytest.mark.parametrize(
    "name, options",
    [
        ("plain", {}),
        ("clipped values", {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"}),
        ("bf16", {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 0.1}),
        ("fp16", fp16),
        ("epochs", {"max_epochs": 3, "accumulate_grad_batches": 3, "batches": 5, "val_check_interval": 2}),
    ],
)
@pytest.mark.parametrize(
    "loss_of", [None, lambda module, batch: image_loss(module.net, batch)], ids=["training_step", "loss_of"]
)
def test_lightning(lightning, lockstep, tmp_path, name, options, loss_of):
    made = options if callable(options) else lambda _: options
    path = tmp_path / "a.lscap.h5"
    callback = lockstep_capture.lightning.CaptureCallback(path, steps=STEPS, loss_of=loss_of)
    same(fitted(lightning, [callback], **made(lightning)), fitted(lightning, [], **made(lightning)))
    nothing_is_left_replaced()
    accumulated = made(lightning).get("accumulate_grad_batches", 1)
    assert micro_counts(path) == ([3, 2, 3] if name == "epochs" else [accumulated] * STEPS)
    with h5py.File(path) as file:
        assert len(file["graphs"]) == 1 and "net.fc.weight" in file["params"]
        assert file["steps/000000"].attrs["scale_before"] == (2.0**14 if name == "fp16" else 1.0)
    accepted(lockstep, path, tmp_path)


@pytest.mark.parametrize(
    "options",
    [{}, fp16, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.1}],
    ids=["plain", "fp16", "accumulated"],
)
def test_lightning_takes_a_step_again(lightning, lockstep, tmp_path, options):
    made = options if callable(options) else lambda _: options
    callback = lockstep_capture.lightning.CaptureCallback(tmp_path / "a.lscap.h5", when=[2], times=1)
    same(fitted(lightning, [callback], **made(lightning)), fitted(lightning, [], **made(lightning)))
    nothing_is_left_replaced()
    taken = tmp_path / "a.step000002.lscap.h5"
    assert micro_counts(taken) == [made(lightning).get("accumulate_grad_batches", 1)]
    assert "V0  PASS" in lockstep("verify", taken).stdout


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 3}], ids=["plain", "accumulated"])
def test_lightning_parts(lightning, lockstep, tmp_path, options):
    callback = lockstep_capture.lightning.PartsCallback(tmp_path / "parts", ["net.fc"], steps=2, quiet=True)
    same(fitted(lightning, [callback], **options), fitted(lightning, [], **options))
    nothing_is_left_replaced()
    rows = parts_of(tmp_path / "parts")
    assert [row["step"] for row in rows] == [0, 1]
    assert {row["calls"] for row in rows} == {options.get("accumulate_grad_batches", 1)}
    lockstep("verify", tmp_path / "parts")


@pytest.mark.parametrize("where", ["training_step", "on_before_optimizer_step", "on_train_batch_end"])
@pytest.mark.parametrize("error", [Fails, KeyboardInterrupt])
def test_lightning_after_an_error(lightning, lockstep, tmp_path, where, error):
    """In the third step: the file has the two before it."""

    class Fail(lightning.Callback):
        pass

    def fail(self, trainer, *rest):
        if trainer.global_step == (3 if where == "on_train_batch_end" else 2):
            raise error("no")

    def failing_step(self, batch):
        fail(None, self.trainer)
        self.kept.append(loss := image_loss(self.net, batch))
        return loss

    if where != "training_step":
        setattr(Fail, where, fail)
    path = tmp_path / "a.lscap.h5"
    callback = lockstep_capture.lightning.CaptureCallback(
        path, steps=4, loss_of=lambda module, batch: image_loss(module.net, batch)
    )
    with pytest.raises((error, SystemExit)):  # Lightning exits after Ctrl-C
        fitted(lightning, [Fail(), callback], module_of(lightning, failing_step if where == "training_step" else None))
    nothing_is_left_replaced()
    assert micro_counts(path) == [1, 1]
    lockstep("verify", path)


def test_lightning_leaves_an_epoch_early(lightning, lockstep, tmp_path):
    """The module's on_train_batch_start returns -1: Lightning calls no on_train_batch_end."""

    def stop(self, batch, batch_idx):
        return -1 if batch_idx == 2 else None

    path = tmp_path / "a.lscap.h5"
    callback = lockstep_capture.lightning.CaptureCallback(path, steps=4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted(lightning, [callback], module_of(lightning, on_train_batch_start=stop), max_epochs=2)
    assert sum("on_train_batch_start returned -1" in str(warning.message) for warning in caught) == 1
    nothing_is_left_replaced()
    assert micro_counts(path) == [1, 1]
    lockstep("verify", path)


def test_lightning_after_the_captured_steps(lightning, tmp_path):
    seen = {}

    class Look(lightning.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            seen[index] = callback._blocks is not None

    callback = lockstep_capture.lightning.CaptureCallback(tmp_path / "a.lscap.h5", steps=2)
    fitted(lightning, [callback, Look()], batches=4)
    assert seen == {0: True, 1: True, 2: False, 3: False}
    free_of_cost(
        lambda: (
            callback.on_train_batch_start(None, None, None, 0),
            callback.on_train_batch_end(None, None, None, None, 0),
        )
    )


def test_lightning_refusals(lightning, tmp_path):
    made, path = lockstep_capture.lightning.CaptureCallback, tmp_path / "a.lscap.h5"
    with pytest.raises(CaptureError, match="automatic_optimization is False"):
        fitted(lightning, [made(path)], module_of(lightning, automatic_optimization=False))
    with pytest.raises(CaptureError, match="no-such-folder does not exist"):
        fitted(lightning, [made(tmp_path / "no-such-folder" / "a.h5")])
    nothing_is_left_replaced()
    assert not path.exists()


def test_lightning_reports_and_trains_on(lightning, tmp_path):
    """What the callback itself refuses is one warning, too."""

    def manual(self, batch, batch_idx):
        self.optimizers().zero_grad()
        self.kept.append(loss := image_loss(self.net, batch))
        self.manual_backward(loss)
        self.optimizers().step()

    def trained(callbacks):
        return fitted(lightning, callbacks, module_of(lightning, manual, automatic_optimization=False))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reported = trained([lockstep_capture.lightning.CaptureCallback(tmp_path / "a.h5", on_unsupported="report")])
    assert sum("automatic_optimization is False" in str(warning.message) for warning in caught) == 1
    same(reported, trained([]))
    assert not (tmp_path / "a.h5").exists()


# ---- Packages that are missing


@pytest.mark.parametrize(
    "name, packages, message",
    [
        ("hugging_face", ["transformers"], r"needs the package transformers: pip install 'transformers\[torch\]'"),
        (
            "lightning",
            ["lightning", "lightning.pytorch", "pytorch_lightning"],
            "needs the package lightning or pytorch-lightning: pip install lightning",
        ),
    ],
)
def test_a_missing_package_is_named(monkeypatch, name, packages, message):
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"lockstep_capture.callbacks.{name}", raising=False)
    with pytest.raises(ImportError, match=message):
        getattr(lockstep_capture, name)


def test_the_packages_are_imported_when_they_are_asked_for():
    script = (
        "import sys, lockstep_capture; print({'transformers', 'lightning', 'pytorch_lightning'} & set(sys.modules))"
    )
    folder = str(pathlib.Path(lockstep_capture.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"
    with pytest.raises(AttributeError, match="has no attribute 'keras'"):
        lockstep_capture.keras
