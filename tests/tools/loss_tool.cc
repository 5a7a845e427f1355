// Training steps of a built-in model with a backward pass per loss, on weights and batches read
// from raw files, so that another program (PyTorch) can be compared with it. SGD only.
//
//   lockstep_loss_tool MODEL DIR POLICY STEPS LR MOMENTUM [NAME=X ...]
//       reads  DIR/p_NAME, DIR/b_NAME, DIR/in_PATH.STEP (f32 or i32)
//       writes DIR/w_NAME.STEP, the weights after every step
//       prints a line per step: SCALE:FOUND_INF per scaler, then SKIPPED
// NAME=X: batch=N, image=C,H,W, classes=N, or a size of the model. All files are raw little-endian,
// row-major.
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <span>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/autodiff.h"
#include "src/models/model.h"
#include "src/train/lane/lane.h"

namespace lockstep {
namespace {

ModelShape parse_shape(const Model& model, std::span<const std::string> words) {
  ModelShape shape{2, {1, 28, 28}, 10};
  ModelSizes sizes;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
    if (name == "batch") {
      shape.batch = std::stoll(value);
    } else if (name == "classes") {
      shape.classes = std::stoll(value);
    } else if (name == "image") {
      shape.image.clear();
      for (const std::string& extent : split(value, ',')) shape.image.push_back(std::stoll(extent));
    } else {
      sizes[name] = std::stod(value);
    }
  }
  shape.sizes = complete_sizes(model, sizes);
  return shape;
}

Tensor read_raw(const std::string& path, const TensorType& type) {
  const bool is_int = type.element == ElementType::kInt;
  Tensor tensor(type.shape, is_int ? Container::kI32 : Container::kF32);
  std::ifstream file(path, std::ios::binary);
  file.read(static_cast<char*>(tensor.raw()), static_cast<std::streamsize>(tensor.bytes()));
  if (!file) throw InputError("'" + path + "': cannot be read, or is too short");
  return tensor;
}

void write_weights(const Graph& graph, const LaneState& state, const std::string& folder,
                   int64_t step) {
  for (const Parameter& p : graph.parameters) {
    const Tensor& weight = state.tensors.at("weight/" + p.name);
    std::ofstream file(fmt::format("{}/w_{}.{}", folder, p.name, step), std::ios::binary);
    file.write(static_cast<const char*>(weight.raw()),
               static_cast<std::streamsize>(weight.bytes()));
  }
}

void run(const std::vector<std::string>& args) {
  const Model& model = find_model(args[0]);
  const std::string& folder = args[1];
  RunOptions options;
  options.model = args[0];
  options.steps = std::stoll(args[3]);
  options.optimizer.values = {{"lr", std::stod(args[4])}, {"momentum", std::stod(args[5])}};
  options.backward_per_loss = true;
  const ModelShape shape = parse_shape(model, std::span(args).subspan(6));
  const Graph graph = differentiate_per_loss(model.build(shape, /*training=*/true));
  const SiteTable sites = make_sites(graph, /*optimizer_states=*/1);
  const LaneContext context = make_lane_context(graph, sites, options);
  std::map<std::string, Tensor> initial;
  for (const Parameter& p : graph.parameters) {
    initial[p.name] = read_raw(folder + "/p_" + p.name, p.type);
  }
  for (const Buffer& b : graph.buffers) initial[b.name] = read_raw(folder + "/b_" + b.name, b.type);
  Lane lane(context, describe_lane(args[2]), initial);
  for (int64_t step = 0; step < options.steps; ++step) {
    Batch batch;
    for (const GraphInput& input : graph.inputs) {
      if (is_seed(input.id)) continue;
      const std::string path = folder + "/in_" + input.path + "." + std::to_string(step);
      batch.insert_or_assign(input.path, read_raw(path, input.type));
    }
    LaneStep record;
    record.sites.resize(sites.sites.size());
    lane.begin_micro_batch(step, 0, batch);
    for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
      lane.run_node(n, nullptr, record.sites);
    }
    lane.finish_micro_batch(0, record);
    lane.finish_step(nullptr, record);
    for (const ScalerRecord& s : record.scalers) {
      fmt::print("{:a}:{:d} ", s.scale, s.found_inf);
    }
    fmt::print("{:d}\n", record.scalers[0].skipped);
    write_weights(graph, copy_of(lane.state()), folder, step);
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() < 6) {
    std::cerr << "usage: lockstep_loss_tool MODEL DIR POLICY STEPS LR MOMENTUM [NAME=X ...]\n";
    return 2;
  }
  try {
    lockstep::run(args);
  } catch (const lockstep::InputError& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return 0;
}
