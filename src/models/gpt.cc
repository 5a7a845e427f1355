// A character model like GPT-2: pre-normalised blocks, causal attention, a head that
// shares the embedding's weight.
// Source: A. Radford et al., "Language models are unsupervised multitask learners", 2019, section
// 2.3 (residual projections start smaller by 1/sqrt(2 layers)).
#include <cmath>

#include "src/models/transformer.h"

namespace lockstep {
namespace {

// (T,T), 1 where the key comes after the query.
Value causal_mask(GraphBuilder& b, int64_t context) {
  Tensor mask({context, context}, Container::kI32);
  const auto out = mask.as<int32_t>();
  for (int64_t query = 0; query < context; ++query) {
    for (int64_t key = query + 1; key < context; ++key) {
      out[static_cast<size_t>(query * context + key)] = 1;
    }
  }
  return b.constant("causal_mask", std::move(mask));
}

Graph build(const ModelShape& shape, bool training) {
  GraphBuilder b("gpt");
  const TransformerSizes sizes = transformer_sizes(shape);
  const int64_t context = shape.whole("context");
  const Value tokens = add_tokens(b, shape, context);  // (B,T)
  const Value labels = add_labels(b, {shape.batch * context});
  const Value mask = causal_mask(b, context);

  const Value token = b.embedding("wte", tokens, shape.classes, sizes.width);           // (B,T,C)
  const Value place = b.embedding("wpe", positions(b, context), context, sizes.width);  // (T,C)
  Value x = b.dropout("drop", b.op("add", {token, place}, {}, "embed"), sizes.dropout);
  for (int64_t i = 0; i < sizes.layers; ++i) {
    x = pre_norm_block(b, "h." + std::to_string(i), x, sizes, mask, "tanh");
  }
  x = b.layer_norm("ln_f", x);
  x = b.op("linear", {x, "p:wte.weight"}, {}, "lm_head");  // (B,T,V)
  x = b.reshape("lm_head", x, {shape.batch * context, shape.classes});
  return finish_model(b, classify(b, "loss", x, labels), training);
}

std::vector<InitRule> init(const ModelSizes& sizes) {
  constexpr double kStd = 0.02;
  return {{"*.weight", InitKind::kNormal, kStd},
          {"*.bias", InitKind::kConstant, 0},
          {"*attn.proj.weight", InitKind::kNormal, kStd / std::sqrt(2 * sizes.at("layers"))},
          {"*mlp.fc2.weight", InitKind::kNormal, kStd / std::sqrt(2 * sizes.at("layers"))},
          {"*ln1.weight", InitKind::kConstant, 1},
          {"*ln2.weight", InitKind::kConstant, 1},
          {"ln_f.weight", InitKind::kConstant, 1}};
}

}  // namespace

Model gpt_model() {
  return {.name = "gpt",
          .help =
              "token and position embedding, pre-normalised causal transformer blocks, tied "
              "head; cross entropy of the next character",
          .source = "Radford et al., 2019 (GPT-2)",
          .default_data = "grammar",
          .task = Task::kNextToken,
          .sizes = {{"layers", 4, "blocks", kMostLayers},
                    {"width", 256, "channels"},
                    {"heads", 4, "attention heads"},
                    {"context", 128, "characters per example"},
                    {"dropout", 0.1, "rate"}},
          .build = &build,
          .init = &init};
}

}  // namespace lockstep
