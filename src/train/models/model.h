// Which networks come with Lockstep?
// One row per built-in model: a function that writes the forward graph for a batch size, and the
// initial weights, torch.nn's usual initialisation drawn from counters.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "src/core/tensor.h"
#include "src/graph/ir.h"

namespace lockstep {

struct ModelShape {
  int64_t batch;
  Shape image;  // (C,H,W)
  int64_t classes;
};

struct Model {
  std::string_view name, help;
  std::string_view default_data;  // a data spec that needs no file
  // `training`: batch_norm in training mode. The graph has outputs "logits" and a loss.
  Graph (*build)(const ModelShape&, bool training);
};

std::span<const Model> models();
const Model& find_model(std::string_view name);  // Throws: InputError with a did-you-mean

// Values by parameter and buffer name, kF32. torch.nn defaults: linear and conv weights and biases
// uniform in +-1/sqrt(fan_in), batch_norm weight 1, bias 0, running mean 0, running variance 1.
std::map<std::string, Tensor> initial_state(const Graph& graph, uint64_t seed);

}  // namespace lockstep
