// See seed_graphs.h: one function per network.
#include "tests/record/capture/seed_graphs.h"

#include "src/graph/builder.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kBatch = 2;
using Ints = std::vector<int64_t>;

Graph dense() {
  GraphBuilder b("Dense");
  const Value x = b.input("batch[0]", {{kBatch, 4}});
  const Value labels = b.input("batch[1]", {{kBatch}, ElementType::kInt});
  Value h = b.dropout("drop", b.relu("relu", b.batch_norm("bn", b.linear("fc1", x, 4))), 0.25);
  h = b.op("prelu", {h, b.parameter("act.weight", {1})}, {}, "act");
  h = b.op("clamp", {h}, {{"min", -2.0}, {"max", 2.0}}, "clamp");
  b.set_loss(b.op("cross_entropy", {b.linear("fc2", h, 3), labels},
                  {{"label_smoothing", 0.1}, {"ignore_index", int64_t{-100}}}, "loss",
                  "train.py:7"));
  return b.finish();
}

Graph images() {
  GraphBuilder b("Images");
  Value x = b.input("batch['image']", {{kBatch, 2, 8, 8}});
  x = b.conv2d("conv", x, 4, 3, 1, 1);
  x = b.op("group_norm", {x, b.parameter("gn.weight", {4}), b.parameter("gn.bias", {4})},
           {{"groups", int64_t{2}}, {"eps", 1e-5}}, "gn");
  x = b.max_pool2d("pool", b.op("silu", {x}, {}, "act"), 2, 2);
  x = b.conv_transpose2d("up", x, 4, 2, 2);
  x = b.op("avg_pool2d", {x}, {{"kernel", Ints{2}}, {"stride", Ints{2}}}, "avg");
  x = b.op("pixel_shuffle", {x}, {{"factor", int64_t{2}}}, "shuffle");
  x = b.op("upsample_bilinear2d", {x}, {{"size", Ints{4, 4}}}, "bilinear");
  x = b.op("upsample_nearest2d", {x}, {{"scale", 2.0}}, "nearest");
  x = b.op("pad", {x}, {{"pads", Ints{1, 1, 0, 1}}, {"value", 0.5}}, "pad");
  x = b.op("adaptive_avg_pool2d", {x}, {{"size", Ints{2, 2}}}, "pooled");
  x = b.op("leaky_relu", {x}, {{"negative_slope", 0.1}}, "leaky");
  x = b.linear("head", b.flatten("flatten", x), 2);
  b.set_loss(b.op("mse_loss", {x, b.input("batch['goal']", {{kBatch, 2}})}, {}, "loss"));
  return b.finish();
}

Graph attention() {
  GraphBuilder b("Attention");
  constexpr int64_t kTime = 3, kHeads = 2, kWidth = 4, kWords = 5;
  const Value tokens = b.input("batch[0]", {{kBatch, kTime}, ElementType::kInt});
  const Value labels = b.input("batch[1]", {{kBatch * kTime}, ElementType::kInt});
  Value x = b.layer_norm("ln", b.embedding("wte", tokens, kWords, kWidth));
  const auto heads = [&](const std::string& name) {
    const Value split =
        b.reshape(name, b.linear(name, x, kWidth), {kBatch, kTime, kHeads, kWidth / kHeads});
    return b.permute(name, split, {0, 2, 1, 3});
  };
  const Value mask =
      b.constant("mask", Tensor::from<int32_t>({kTime, kTime}, {1, 0, 0, 1, 1, 0, 1, 1, 1}));
  Value y = b.op("sdpa", {heads("q"), heads("k"), heads("v"), mask},
                 {{"dropout_p", 0.25}, {"training", true}}, "attn");
  y = b.reshape("attn", b.permute("attn", y, {0, 2, 1, 3}), {kBatch, kTime, kWidth});
  y = b.op("add", {x, y}, {}, "residual");
  y = b.op("rms_norm", {y, b.parameter("rms.weight", {kWidth})}, {}, "rms");
  Value z = b.op("softmax", {b.op("matmul", {y, y}, {{"transpose_b", true}}, "scores")},
                 {{"dim", int64_t{-1}}}, "softmax");
  z = b.op("masked_fill", {z, mask}, {{"value", 0.5}}, "fill");
  z = b.op("gelu", {b.op("matmul", {z, y}, {}, "mixed")}, {{"approximate", std::string("tanh")}},
           "gelu");
  z = b.op("cat", {b.slice("cut", z, 2, 0, 2), b.slice("cut", z, 2, 2, 4)}, {{"dim", int64_t{2}}},
           "cat");
  z = b.op("cumsum", {z}, {{"dim", int64_t{1}}}, "cumsum");
  z = b.reshape("flat", z, {kBatch * kTime, kWidth});
  b.set_loss(b.op("cross_entropy", {b.linear("head", z, kWords), labels}, {}, "loss"));
  return b.finish();
}

Graph recurrent() {
  GraphBuilder b("Recurrent");
  constexpr int64_t kTime = 3, kHidden = 2;
  Value x = b.input("batch.x", {{kBatch, kTime, 3}});
  const auto layer = [&](const std::string& op, int64_t gates) {
    std::vector<Value> operands = {x};
    const Tensor zero({1, kBatch, kHidden}, Container::kF32);
    operands.push_back(b.constant(op + "_h", zero));
    if (op == "lstm") operands.push_back(b.constant(op + "_c", zero));
    const int64_t width = b.shape_of(x)[2];
    operands.push_back(b.parameter(op + ".weight_ih_l0", {gates * kHidden, width}));
    operands.push_back(b.parameter(op + ".weight_hh_l0", {gates * kHidden, kHidden}));
    operands.push_back(b.parameter(op + ".bias_ih_l0", {gates * kHidden}));
    operands.push_back(b.parameter(op + ".bias_hh_l0", {gates * kHidden}));
    x = b.op(op, operands, {}, op);
  };
  layer("lstm", 4);
  layer("gru", 3);
  const Value index = b.input("batch.index", {{kBatch, 1, kHidden}, ElementType::kInt});
  x = b.op("gather", {x, index}, {{"dim", int64_t{1}}}, "gather");
  const Value pick = b.input("batch.pick", {{2}, ElementType::kInt});
  x = b.op("index_select", {x, pick}, {{"dim", int64_t{2}}}, "select");
  x = b.op("bce_with_logits", {x, b.input("batch.goal", {{kBatch, 1, 2}})}, {}, "loss");
  b.set_loss(x);
  return b.finish();
}

Graph arithmetic() {
  GraphBuilder b("Arithmetic");
  const Value in = b.input("batch[0]", {{kBatch, 3}});
  const Value w = b.parameter("w", {3});
  Value x = b.op("mul", {in, w}, {}, "m");
  x = b.op("sub", {x, b.op("div", {x, b.op("exp", {w}, {}, "e")}, {}, "d")}, {}, "s");
  for (const char* op :
       {"tanh", "sigmoid", "hardswish", "hardsigmoid", "elu", "softplus", "abs", "neg"}) {
    x = b.op(op, {x}, {}, op);
  }
  x = b.op("maximum", {x, w}, {}, "max");
  x = b.op("minimum", {x, b.op("rsqrt", {b.op("pow", {w}, {{"exponent", 2.0}}, "p")}, {}, "r")}, {},
           "min");
  x = b.op("cast", {x}, {{"dtype", std::string("bf16")}}, "cast");
  x = b.op("where", {b.input("batch[1]", {{kBatch, 3}, ElementType::kInt}), x, w}, {}, "where");
  const Value spread =
      b.op("var_mean", {x}, {{"dims", Ints{1}}, {"keepdim", true}, {"correction", 1.0}}, "vm");
  x = b.op("add", {x, b.op("expand", {spread}, {{"shape", Ints{kBatch, 3}}}, "ex")},
           {{"alpha", 0.5}}, "a");
  x = b.op("add", {x, b.op("amax", {x}, {{"dims", Ints{1}}, {"keepdim", true}}, "am")}, {}, "a");
  x = b.op("log_softmax", {x}, {{"dim", int64_t{1}}}, "ls");
  Value loss = b.op("kl_div", {x, b.op("softmax", {in}, {{"dim", int64_t{1}}}, "t")},
                    {{"reduction", std::string("batchmean")}}, "kl");
  for (const char* op : {"l1_loss", "smooth_l1_loss", "huber_loss"}) {
    loss = b.op("add", {loss, b.op(op, {x, in}, {}, op)}, {}, "total");
  }
  for (const char* op : {"sum", "mean", "logsumexp"}) {
    loss = b.op("add", {loss, b.op(op, {x}, {}, op)}, {}, "total");
  }
  b.set_loss(loss);
  return b.finish();
}

}  // namespace

std::vector<Graph> seed_graphs() {
  return {dense(), images(), attention(), recurrent(), arithmetic()};
}

}  // namespace lockstep::testing
