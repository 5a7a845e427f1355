"""What captures take for granted of PyTorch 2.13: the ten checks, so that a new version shows what it changed."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from capture_loops import Images, Text, image_batches, image_loss, text_batches, text_loss
from lockstep_capture.trace import frontend_export
from lockstep_capture.watch.mask_tap import MaskTap
from lockstep_capture.ir.program import StepModule
from lockstep_capture.ir.random_ops import random_sites
from torch.nn.attention import SDPBackend, sdpa_kernel

nn = torch.nn


def exported(model, step_fn, batch):
    with frontend_export.quiet():
        return torch.export.export(StepModule(model, step_fn), (batch,))


def calls(exported_program):
    return [node for node in exported_program.graph.nodes if node.op == "call_function"]


def ops(exported_program):
    return [str(node.target) for node in calls(exported_program)]


def text():
    return exported(Text(), text_loss, text_batches(1)[0])


def test_1_ops_stand_at_the_level_of_autocast():
    images = ops(exported(Images(), image_loss, image_batches(1)[0]))
    assert [op for op in images if op != "aten.add_.Tensor"] == [
        "aten.conv2d.default", "aten.batch_norm.default", "aten.relu.default", "aten.max_pool2d.default",
        "aten.flatten.using_ints", "aten.dropout.default", "aten.linear.default", "aten.cross_entropy_loss.default"]
    found = set(ops(text()))
    assert {"aten.embedding.default", "aten.linear.default", "aten.scaled_dot_product_attention.default",
            "aten.layer_norm.default", "aten.dropout.default", "aten.cross_entropy_loss.default"} <= found


def test_2_every_op_of_a_module_names_it():
    program = text()
    stacked = [node for node in calls(program) if node.meta.get("nn_module_stack")]
    assert len(stacked) == len(calls(program))
    paths = {list(node.meta["nn_module_stack"].values())[-1][0] for node in stacked}
    assert {"model.blocks.0.self_attn", "model.head", "model.embed"} <= paths


def test_3_an_lstm_is_one_op_on_parameters():
    model = nn.LSTM(4, 3, 2, batch_first=True)
    program = exported(model, lambda m, b: m(b)[0].sum(), torch.ones(2, 5, 4))
    assert ops(program).count("aten.lstm.input") == 1
    kinds = [spec.kind.name for spec in program.graph_signature.input_specs]
    assert kinds.count("PARAMETER") == 8 and "CONSTANT_TENSOR" not in kinds


def test_4_a_tied_weight_has_one_name_and_it_is_the_last():
    targets = [spec.target for spec in text().graph_signature.input_specs if spec.kind.name == "PARAMETER"]
    assert {"model.embed.weight", "model.head.weight"} <= set(targets), "both names stand in the signature"
    program = frontend_export.trace(StepModule(Text(), text_loss), text_batches(1)[0])
    assert "head.weight" not in program.params.values(), "ours is the first of named_parameters()"
    used = {name for call in program.calls for name in call.refs()}
    assert [path for name, path in program.params.items() if name in used].count("embed.weight") == 1


@pytest.mark.parametrize("region,enabled", [(None, None), (True, True), (False, False)])
def test_5_autocast_inside_is_a_higher_order_op_and_outside_is_absent(region, enabled):
    def step(model, batch):
        block = torch.autocast("cpu", torch.bfloat16, enabled=region) if region is not None else contextlib.nullcontext()
        with block:
            return model(batch).sum()

    with torch.autocast("cpu", torch.bfloat16):
        program = frontend_export.trace(StepModule(nn.Linear(3, 2), step), torch.ones(1, 3))
    linear = next(call for call in program.calls if call.op == "aten.linear.default")
    assert linear.autocast is None if region is None else linear.autocast.enabled == enabled


def test_5_nested_blocks():
    def step(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(batch)
            with torch.autocast("cpu", enabled=False):
                y = y.float() * 2
            return (y + 1).sum()

    program = frontend_export.trace(StepModule(nn.Linear(3, 2), step), torch.ones(1, 3))
    regions = {call.op: call.autocast.enabled for call in program.calls if call.autocast}
    assert regions["aten.linear.default"] and not regions["aten.mul.Tensor"] and regions["aten.add.Tensor"]


def test_6_in_place_ops_hand_on_their_result():
    def step(model, batch):
        x = model(batch)
        y = F.relu(x, inplace=True)
        y += x
        return y.sum()

    program = frontend_export.trace(StepModule(nn.Linear(3, 2), step), torch.ones(1, 3))
    by_op = {call.op: call for call in program.calls}
    add = by_op["aten.add_.Tensor"]
    assert set(add.refs()) == {by_op["aten.relu_.default"].name}, "x and y are the same tensor: both read relu_"


def test_7_cross_entropy_stays_whole():
    def step(model, batch):
        return F.cross_entropy(model(batch), torch.tensor([1]), torch.ones(2), label_smoothing=0.1, ignore_index=0)

    program = exported(nn.Linear(3, 2), step, torch.ones(1, 3))
    node = next(node for node in calls(program) if "cross_entropy" in str(node.target))
    assert str(node.target) == "aten.cross_entropy_loss.default" and node.args[3:] == (0, 0.1) or \
        (node.kwargs | dict(zip(("r", "ignore_index", "label_smoothing"), node.args[3:])))


def test_8_attention_modules_take_no_fused_path_while_training():
    assert not any("_native_multi_head" in op or "_transformer_encoder" in op for op in ops(text()))


def test_9_attentions_dropout_is_seen_under_the_math_backend():
    q = torch.randn(1, 2, 4, 3)
    with sdpa_kernel(SDPBackend.MATH), MaskTap() as tap:
        F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert [(draw.op, tuple(draw.value.shape)) for draw in tap.draws] == [("aten.bernoulli_.float", (1, 2, 4, 4))]


def test_10_the_kth_draw_is_the_kth_random_call():
    model, batch = Text(), text_batches(1)[0]
    program = frontend_export.trace(StepModule(model, text_loss), batch)
    sites = random_sites(program)
    with MaskTap() as tap:
        text_loss(model, batch)
    assert [site.kind for site in sites] == ["sdpa", "dropout", "dropout", "dropout"]
    assert [tuple(draw.value.shape) for draw in tap.draws] == [(3, 2, 6, 6), (3, 6, 8), (3, 6, 16), (3, 6, 8)]
