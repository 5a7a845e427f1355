// A masked-character encoder like BERT: post-normalised blocks, a transform before the
// tied head.
// Source: J. Devlin et al., "BERT", NAACL 2019; layer_norm eps 1e-12 as in its code.
#include "src/models/transformer.h"

namespace lockstep {
namespace {

constexpr double kEps = 1e-12;

Graph build(const ModelShape& shape, bool training) {
  GraphBuilder b("bert");
  const TransformerSizes sizes = transformer_sizes(shape);
  const int64_t context = shape.whole("context");
  const Value tokens = add_tokens(b, shape, context);  // (B,T)
  const Value labels = add_labels(b, {shape.batch * context});

  const Value token = b.embedding("embeddings.token", tokens, shape.classes, sizes.width);
  const Value place =
      b.embedding("embeddings.position", positions(b, context), context, sizes.width);
  Value x = b.op("add", {token, place}, {}, "embeddings.add");  // (B,T,C)
  x = b.dropout("embeddings.dropout", b.layer_norm("embeddings.ln", x, kEps), sizes.dropout);
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const std::string name = "encoder." + std::to_string(i);
    Value y = attention(b, name + ".attn", x, sizes, "");
    x = b.layer_norm(name + ".ln1", b.op("add", {x, y}, {}, name + ".add1"), kEps);
    y = feed_forward(b, name + ".mlp", x, sizes, "none");
    x = b.layer_norm(name + ".ln2", b.op("add", {x, y}, {}, name + ".add2"), kEps);
  }
  x = b.linear("head.transform", x, sizes.width);
  x = b.op("gelu", {x}, {{"approximate", std::string("none")}}, "head.gelu");
  x = b.layer_norm("head.ln", x, kEps);
  const Value bias = b.parameter("head.bias", {shape.classes});
  x = b.op("linear", {x, "p:embeddings.token.weight", bias}, {}, "head.decoder");  // (B,T,V)
  x = b.reshape("head.decoder", x, {shape.batch * context, shape.classes});
  return finish_model(b, classify(b, "loss", x, labels), training);
}

std::vector<InitRule> init(const ModelSizes&) {
  constexpr double kStd = 0.02;
  return {{"*.weight", InitKind::kNormal, kStd},
          {"*.bias", InitKind::kConstant, 0},
          {"*ln.weight", InitKind::kConstant, 1},
          {"*ln1.weight", InitKind::kConstant, 1},
          {"*ln2.weight", InitKind::kConstant, 1}};
}

}  // namespace

Model bert_model() {
  return {.name = "bert",
          .help =
              "token and position embedding, post-normalised transformer blocks, transform and "
              "tied head; cross entropy at masked characters",
          .source = "Devlin et al., NAACL 2019",
          .default_data = "grammar",
          .task = Task::kMaskedToken,
          .sizes = {{"layers", 2, "blocks", kMostLayers},
                    {"width", 128, "channels"},
                    {"heads", 4, "attention heads"},
                    {"context", 64, "characters per example"},
                    {"dropout", 0.1, "rate"}},
          .build = &build,
          .init = &init};
}

}  // namespace lockstep
