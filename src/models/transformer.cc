// After A. Vaswani et al., "Attention is all you need", NeurIPS 2017, sections 3.2 and 3.3.
#include "src/models/transformer.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "src/core/error.h"

namespace lockstep {
namespace {

constexpr int64_t kFeedForwardFactor = 4;

// (B,T,C), columns part*C .. -> (B,H,T,D)
Value heads_of(GraphBuilder& b, const std::string& name, const Value& qkv, int64_t part,
               const TransformerSizes& sizes) {
  const Shape s = b.shape_of(qkv);
  const Value own = b.slice(name, qkv, 2, part * sizes.width, (part + 1) * sizes.width);
  const Value split = b.reshape(name, own, {s[0], s[1], sizes.heads, sizes.width / sizes.heads});
  return b.permute(name, split, {0, 2, 1, 3});
}

}  // namespace

TransformerSizes transformer_sizes(const ModelShape& shape) {
  const TransformerSizes sizes = {shape.whole("layers"), shape.whole("width"), shape.whole("heads"),
                                  shape.rate("dropout")};
  if (sizes.width % sizes.heads != 0) {
    throw InputError(fmt::format("size heads {}: must divide width {}", sizes.heads, sizes.width));
  }
  return sizes;
}

Value attention(GraphBuilder& b, const std::string& name, const Value& x,
                const TransformerSizes& sizes, const Value& mask) {
  const Shape s = b.shape_of(x);
  const Value qkv = b.linear(name + ".qkv", x, 3 * sizes.width);  // (B,T,3C)
  const Value q = heads_of(b, name + ".q", qkv, 0, sizes);
  const Value k = heads_of(b, name + ".k", qkv, 1, sizes);
  const Value v = heads_of(b, name + ".v", qkv, 2, sizes);
  Value scores = b.op("matmul", {q, k}, {{"transpose_b", true}}, name + ".scores");  // (B,H,T,T)
  const double head_width = static_cast<double>(sizes.width / sizes.heads);
  scores = b.scaled(name + ".scale", scores, 1 / std::sqrt(head_width));
  if (!mask.empty()) {
    const double hidden = -std::numeric_limits<double>::infinity();
    scores = b.op("masked_fill", {scores, mask}, {{"value", hidden}}, name + ".mask");
  }
  Value weights = b.op("softmax", {scores}, {{"dim", int64_t{-1}}}, name + ".softmax");
  weights = b.dropout(name + ".dropout", weights, sizes.dropout);
  Value y = b.op("matmul", {weights, v}, {}, name + ".mix");  // (B,H,T,D)
  y = b.reshape(name + ".join", b.permute(name + ".join", y, {0, 2, 1, 3}), s);
  y = b.linear(name + ".proj", y, sizes.width);
  return b.dropout(name + ".proj_dropout", y, sizes.dropout);
}

Value feed_forward(GraphBuilder& b, const std::string& name, Value x, const TransformerSizes& sizes,
                   const std::string& approximate) {
  x = b.linear(name + ".fc1", x, kFeedForwardFactor * sizes.width);
  x = b.op("gelu", {x}, {{"approximate", approximate}}, name + ".gelu");
  x = b.linear(name + ".fc2", x, sizes.width);
  return b.dropout(name + ".dropout", x, sizes.dropout);
}

Value pre_norm_block(GraphBuilder& b, const std::string& name, Value x,
                     const TransformerSizes& sizes, const Value& mask,
                     const std::string& approximate) {
  const Value attended = attention(b, name + ".attn", b.layer_norm(name + ".ln1", x), sizes, mask);
  x = b.op("add", {x, attended}, {}, name + ".add1");
  const Value fed =
      feed_forward(b, name + ".mlp", b.layer_norm(name + ".ln2", x), sizes, approximate);
  return b.op("add", {x, fed}, {}, name + ".add2");
}

Value positions(GraphBuilder& b, int64_t count) {
  Tensor ids({count}, Container::kI32);
  const auto out = ids.as<int32_t>();
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(i);
  return b.constant("positions", std::move(ids));
}

}  // namespace lockstep
