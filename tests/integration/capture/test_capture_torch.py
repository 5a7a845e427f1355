"""What captures take for granted of PyTorch 2.13: ten checks, so that a new version shows what it changed."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from capture_loops import Images, Text, image_batches, image_loss, text_batches, text_loss
from lockstep_capture.ir.program import StepModule
from lockstep_capture.ir.random_ops import random_sites
from lockstep_capture.trace import frontend_run
from lockstep_capture.watch.mask_tap import MaskTap
from torch.nn.attention import SDPBackend, sdpa_kernel

nn = torch.nn
CPU = torch.device("cpu")


def program_of(model, step_fn, batch):
    return frontend_run.trace(StepModule(model, step_fn), batch, CPU).program


def ops(program):
    return [call.op for call in program.calls]


def text():
    return program_of(Text(), text_loss, text_batches(1)[0])


def test_1_ops_stand_at_the_level_of_autocast():
    images = ops(program_of(Images(), image_loss, image_batches(1)[0]))
    assert [op for op in images if op != "aten.add_.Tensor"] == [
        "aten.conv2d.default",
        "aten.batch_norm.default",
        "aten.relu.default",
        "aten.max_pool2d.default",
        "aten.flatten.using_ints",
        "aten.dropout.default",
        "aten.linear.default",
        "aten.cross_entropy_loss.default",
    ]
    found = set(ops(text()))
    assert {
        "aten.embedding.default",
        "aten.linear.default",
        "aten.scaled_dot_product_attention.default",
        "aten.layer_norm.default",
        "aten.dropout.default",
        "aten.cross_entropy_loss.default",
    } <= found


def test_2_every_op_of_a_module_names_it():
    places = [call.place for call in text().calls]
    assert all(place.source for place in places), places
    assert [call.op for call in text().calls if not call.place.module_class] == [
        "aten.flatten.using_ints",
        "aten.flatten.using_ints",
        "aten.cross_entropy_loss.default",
    ]
    assert {"blocks.0.self_attn", "head", "embed"} <= {place.module for place in places}


def test_3_an_lstm_is_one_op_on_parameters():
    program = program_of(nn.LSTM(4, 3, 2, batch_first=True), lambda m, b: m(b)[0].sum(), torch.ones(2, 5, 4))
    assert ops(program).count("aten.lstm.input") == 1
    assert len(program.params) == 8 and not program.constants


def test_4_a_tied_weight_has_one_name_and_it_is_the_first():
    program = text()
    assert "head.weight" not in program.params.values(), "ours is the first of named_parameters()"
    used = {name for call in program.calls for name in call.refs()}
    assert [path for name, path in program.params.items() if name in used].count("embed.weight") == 1


@pytest.mark.parametrize("region,enabled", [(None, None), (True, True), (False, False)])
def test_5_autocast_inside_stands_at_the_calls_and_outside_is_absent(region, enabled):
    def step(model, batch):
        block = (
            torch.autocast("cpu", torch.bfloat16, enabled=region) if region is not None else contextlib.nullcontext()
        )
        with block:
            return model(batch).sum()

    with torch.autocast("cpu", torch.bfloat16):
        program = program_of(nn.Linear(3, 2), step, torch.ones(1, 3))
    linear = next(call for call in program.calls if call.op == "aten.linear.default")
    assert linear.autocast is None if region is None else linear.autocast.enabled == enabled


def test_5_nested_blocks():
    def step(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(batch)
            with torch.autocast("cpu", enabled=False):
                y = y.float() * 2
            return (y + 1).sum()

    program = program_of(nn.Linear(3, 2), step, torch.ones(1, 3))
    regions = {call.op: call.autocast.enabled for call in program.calls if call.autocast}
    assert regions["aten.linear.default"] and not regions["aten.mul.Tensor"] and regions["aten.add.Tensor"]


def test_6_in_place_ops_hand_on_their_result():
    def step(model, batch):
        x = model(batch)
        y = F.relu(x, inplace=True)
        y += x
        return y.sum()

    by_op = {call.op: call for call in program_of(nn.Linear(3, 2), step, torch.ones(1, 3)).calls}
    add = by_op["aten.add_.Tensor"]
    assert set(add.refs()) == {by_op["aten.relu_.default"].name}, "x and y are the same tensor: both read relu_"


def test_7_cross_entropy_stays_whole():
    def step(model, batch):
        return F.cross_entropy(model(batch), torch.tensor([1]), torch.ones(2), label_smoothing=0.1, ignore_index=0)

    program = program_of(nn.Linear(3, 2), step, torch.ones(1, 3))
    call = next(call for call in program.calls if "cross_entropy" in call.op)
    assert call.op == "aten.cross_entropy_loss.default" and call.args[3:] == (1, 0, 0.1)


def test_8_attention_modules_take_no_fused_path_while_training():
    assert not any("_native_multi_head" in op or "_transformer_encoder" in op for op in ops(text()))


def test_9_attentions_dropout_is_seen_under_the_math_backend():
    q = torch.randn(1, 2, 4, 3)
    with sdpa_kernel(SDPBackend.MATH), MaskTap() as tap:
        F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert [(draw.op, tuple(draw.value.shape)) for draw in tap.draws] == [("aten.bernoulli_.float", (1, 2, 4, 4))]


def test_10_the_kth_draw_is_the_kth_random_call():
    model, batch = Text(), text_batches(1)[0]
    sites = random_sites(program_of(model, text_loss, batch))
    with MaskTap() as tap:
        text_loss(model, batch)
    assert [site.kind for site in sites] == ["sdpa", "dropout", "dropout", "dropout"]
    assert [tuple(draw.value.shape) for draw in tap.draws] == [(3, 2, 6, 6), (3, 6, 8), (3, 6, 16), (3, 6, 8)]


def test_10_dropout_inside_cudnn_is_known_to_be_hidden():
    library = torch.library.Library("aten", "IMPL")  # the op has no kernel for the CPU
    library.impl("_cudnn_rnn", lambda *args: (torch.zeros(1),) * 5, "CPU")

    def runs(layers, dropout, train):
        x = torch.zeros(1)
        with MaskTap() as tap:
            torch.ops.aten._cudnn_rnn(x, [x], 4, None, x, x, 2, 3, 0, layers, False, dropout, train, False, [], None)
        return tap.hides_dropout

    assert runs(2, 0.1, True)
    assert not (runs(1, 0.1, True) or runs(2, 0.0, True) or runs(2, 0.1, False))


def test_11_an_op_that_returns_its_operand_is_no_call():
    def step(model, batch):
        y = model(batch)
        return F.dropout(y, 0.0).contiguous().to(torch.device("cpu")).sum()

    assert ops(program_of(nn.Linear(3, 2), step, torch.ones(1, 3))) == ["aten.linear.default", "aten.sum.default"]


def test_12_values_that_python_reads_are_numbers_of_the_path():
    def step(model, batch):
        y = model(batch)
        if y.sum() > 0:
            y = y * y.detach().abs().max().item()
        return y.sum()

    model = nn.Linear(3, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    up, down, again = (
        frontend_run.observe(StepModule(model, step), x * torch.ones(1, 3), CPU, None) for x in (1.0, -1.0, 1.0)
    )
    assert "aten.mul.Tensor" in ops(up.program) and "aten.mul.Tensor" not in ops(down.program)
    assert up.key == again.key != down.key
    assert next(call for call in up.program.calls if call.op == "aten.mul.Tensor").args[1] == 2.0
