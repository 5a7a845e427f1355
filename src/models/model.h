// The built-in networks, one row per model: the task it learns, its sizes, a function that writes
// the forward graph for a batch, and the rules that draw its first weights.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/tensor.h"
#include "src/data/dataset.h"
#include "src/graph/ir.h"

namespace lockstep {

inline constexpr double kLargestSize = 1 << 24, kMostLayers = 1000;

// A number that makes a model larger or smaller, e.g. {"layers", 4, "transformer blocks", 1000}.
struct ModelSize {
  std::string_view name;
  double value;  // the default
  std::string_view help;
  double most = kLargestSize;  // of layers far less: each has nodes of its own
};

// By name; every size of a model has one.
using ModelSizes = std::map<std::string, double>;

struct ModelShape {
  int64_t batch;
  Shape image;      // (C,H,W); empty for text
  int64_t classes;  // for text, the size of the vocabulary
  ModelSizes sizes = {};

  // Throws: InputError unless the size is an integer of at least 1.
  int64_t whole(std::string_view size) const;
  // Throws: InputError unless the size is in [0, 1).
  double rate(std::string_view size) const;
};

// The distribution of a parameter's first values. fan_in: elements of one output's weights.
enum class InitKind : uint8_t {
  kTorchDefault,   // that of its torch.nn module; see initial_state.cc
  kConstant,       // `value`
  kNormal,         // standard deviation `value`
  kUniform,        // in +-`value`
  kKaimingNormal,  // standard deviation sqrt(2 / fan_in): He et al., ICCV 2015
  kXavierUniform,  // in +-sqrt(6 / (fan_in + fan_out)): Glorot & Bengio, AISTATS 2010
};
// For parameters whose name matches the glob; later rules win.
struct InitRule {
  std::string pattern;
  InitKind kind;
  double value = 0;
};

struct Model {
  std::string_view name, help;
  std::string_view source;        // of the architecture
  std::string_view default_data;  // a data spec that needs no file
  Task task = Task::kImages;
  std::vector<ModelSize> sizes = {};
  // `training`: batch_norm and dropout in training mode. The graph has a loss. A model that
  // classifies also outputs "logits" (N,C) or (N,C,...) and "labels", the input with the right
  // classes.
  Graph (*build)(const ModelShape&, bool training);
  // Depends on the sizes where initialisation scales with depth.
  std::vector<InitRule> (*init)(const ModelSizes&) = nullptr;
};

std::span<const Model> models();
const Model& find_model(std::string_view name);  // Throws: InputError with a did-you-mean

// The model's sizes: the given ones, and the defaults of the others.
// Throws: InputError with every name that is not a size of the model, and every value beyond its
// limit.
ModelSizes complete_sizes(const Model& model, const ModelSizes& given);
// The data that the model needs.
DataRequest data_request(const Model& model, const ModelSizes& sizes, uint64_t seed);

// Values by parameter and buffer name, kF32.
std::map<std::string, Tensor> initial_state(const Model& model, const ModelSizes& sizes,
                                            const Graph& graph, uint64_t seed);

}  // namespace lockstep
