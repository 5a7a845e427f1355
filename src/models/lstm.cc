// A character model of stacked LSTM layers.
// Source: S. Hochreiter, J. Schmidhuber, Neural Computation 9(8), 1997; torch.nn.LSTM's form, with
// its parameter names under "rnn".
#include "src/models/model_rows.h"

namespace lockstep {
namespace {

Graph build(const ModelShape& shape, bool training) {
  GraphBuilder b("lstm");
  const int64_t context = shape.whole("context"), layers = shape.whole("layers");
  const int64_t embedding = shape.whole("embedding"), hidden = shape.whole("hidden");
  const double dropout = shape.rate("dropout");
  const Value tokens = add_tokens(b, shape, context);  // (B,T)
  const Value labels = add_labels(b, {shape.batch * context});

  Value x = b.embedding("embed", tokens, shape.classes, embedding);  // (B,T,E)
  const Value start = b.constant("start", Tensor({layers, shape.batch, hidden}, Container::kF32));
  std::vector<Value> operands = {x, start, start};
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string suffix = "_l" + std::to_string(layer);
    const int64_t inputs = layer == 0 ? embedding : hidden;
    operands.push_back(b.parameter("rnn.weight_ih" + suffix, {4 * hidden, inputs}));
    operands.push_back(b.parameter("rnn.weight_hh" + suffix, {4 * hidden, hidden}));
    operands.push_back(b.parameter("rnn.bias_ih" + suffix, {4 * hidden}));
    operands.push_back(b.parameter("rnn.bias_hh" + suffix, {4 * hidden}));
  }
  x = b.op("lstm", operands,
           {{"layers", layers}, {"batch_first", true}, {"dropout", dropout}, {"training", true}},
           "rnn");  // (B,T,H)
  x = b.dropout("drop", x, dropout);
  x = b.linear("head", b.reshape("head", x, {shape.batch * context, hidden}), shape.classes);
  return finish_model(b, classify(b, "loss", x, labels), training);
}

}  // namespace

Model lstm_model() {
  return {
      .name = "lstm",
      .help = "embedding, stacked LSTM layers, linear head; cross entropy of the next character",
      .source = "Hochreiter & Schmidhuber, 1997; torch.nn.LSTM",
      .default_data = "grammar",
      .task = Task::kNextToken,
      .sizes = {{"layers", 2, "LSTM layers", kMostLayers},
                {"embedding", 64, "numbers per character"},
                {"hidden", 256, "units of a layer"},
                {"context", 64, "characters per example"},
                {"dropout", 0.1, "rate, between layers and before the head"}},
      .build = &build};
}

}  // namespace lockstep
