// The parts that the transformers share: attention and the feed-forward part, written out op by op
// so that every product has sites of its own. Shapes: x (B,T,C), H heads of D = C / H.
#pragma once

#include "src/models/model_rows.h"

namespace lockstep {

struct TransformerSizes {
  int64_t layers, width, heads;
  double dropout;
};
// From "layers", "width", "heads", "dropout". Throws: InputError unless heads divides width.
TransformerSizes transformer_sizes(const ModelShape& shape);

// softmax(q k^T / sqrt(D) [masked]) v, projected. `mask` (T,T) is nonzero at hidden positions; "":
// no mask. One linear layer NAME.qkv gives q, k and v.
Value attention(GraphBuilder& b, const std::string& name, const Value& x,
                const TransformerSizes& sizes, const Value& mask);
// NAME.fc1 to 4C, gelu, NAME.fc2 back. `approximate`: "none" or "tanh".
Value feed_forward(GraphBuilder& b, const std::string& name, Value x, const TransformerSizes& sizes,
                   const std::string& approximate);

// x + attention(norm1(x)), then + feed_forward(norm2(.)): pre-normalised, as in GPT-2 and ViT.
Value pre_norm_block(GraphBuilder& b, const std::string& name, Value x,
                     const TransformerSizes& sizes, const Value& mask,
                     const std::string& approximate);

// The positions 0..count-1 as a constant.
Value positions(GraphBuilder& b, int64_t count);

}  // namespace lockstep
