// One forward and backward pass of a built-in model in the FP64 engine, on weights and a batch read
// from raw files, so that another program (PyTorch) can be compared with it. Knows no optimizer.
//
//   lockstep_step_tool --list MODEL          parameter names and shapes
//   lockstep_step_tool MODEL BATCH DIR       reads  DIR/p_NAME.f64, images.f64, labels.i32
//                                            writes DIR/loss.txt, DIR/g_NAME.f64
// All files are raw little-endian, row-major. Buffers have their initial values.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/autodiff.h"
#include "src/train/execute.h"
#include "src/train/models/model.h"

namespace lockstep {
namespace {

constexpr int64_t kClasses = 10;
const Shape kImage = {1, 28, 28};

Graph step_graph(std::string_view model, int64_t batch) {
  return differentiate(find_model(model).build({batch, kImage, kClasses}, /*training=*/true));
}

Tensor read_raw(const std::string& path, const Shape& shape, Container container) {
  Tensor tensor(shape, container);
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw InputError("'" + path + "': cannot be read");
  if (file.tellg() != static_cast<std::streamoff>(tensor.bytes())) {
    throw InputError(fmt::format("'{}': {} bytes, {} required for shape {}", path,
                                 static_cast<int64_t>(file.tellg()), tensor.bytes(),
                                 to_string(shape)));
  }
  file.seekg(0);
  file.read(static_cast<char*>(tensor.raw()), static_cast<std::streamsize>(tensor.bytes()));
  return tensor;
}

void write_raw(const std::string& path, const Tensor& tensor) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(tensor.raw()), static_cast<std::streamsize>(tensor.bytes()));
  if (!file) throw InputError("'" + path + "': cannot be written");
}

void list_parameters(std::string_view model) {
  for (const Parameter& p : step_graph(model, 1).parameters) {
    std::cout << p.name << ' ' << to_string(p.type.shape) << '\n';
  }
}

void run(std::string_view model, int64_t batch, const std::string& directory) {
  const Graph graph = step_graph(model, batch);
  const SiteTable sites = make_sites(graph, 0);
  Executor executor(graph, sites, lower(graph, sites, find_policy("fp32"), true), Container::kF64);
  std::map<std::string, Tensor> bound;  // by value id
  for (const Parameter& p : graph.parameters) {
    bound["p:" + p.name] =
        read_raw(directory + "/p_" + p.name + ".f64", p.type.shape, Container::kF64);
  }
  const auto initial = initial_state(graph, 0);
  for (const Buffer& b : graph.buffers) {
    bound["b:" + b.name] = initial.at(b.name).to(Container::kF64);
  }
  for (const GraphInput& input : graph.inputs) {
    if (input.id == kLossSeedId) continue;
    const bool is_int = input.type.element == ElementType::kInt;
    bound[input.id] = read_raw(directory + "/" + input.path + (is_int ? ".i32" : ".f64"),
                               input.type.shape, is_int ? Container::kI32 : Container::kF64);
  }
  bound[std::string(kLossSeedId)] = Tensor::from<double>({}, {1.0});
  for (const auto& [id, tensor] : bound) executor.bind(id, tensor);

  executor.begin_step({}, 1);
  for (int node = 0; node < executor.node_count(); ++node) executor.run_node(node, nullptr, {});
  write_text_file_atomically(directory + "/loss.txt",
                             fmt::format("{:.17g}\n", executor.value(graph.loss).as<double>()[0]));
  for (const auto& [name, id] : graph.gradients) {
    write_raw(directory + "/g_" + name + ".f64", executor.value(id));
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    if (args.size() == 2 && args[0] == "--list") {
      lockstep::list_parameters(args[1]);
    } else if (args.size() == 3) {
      lockstep::run(args[0], std::atoll(args[1].c_str()), args[2]);
    } else {
      std::cerr << "usage: lockstep_step_tool --list MODEL | MODEL BATCH DIR\n";
      return 2;
    }
  } catch (const lockstep::InputError& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return 0;
}
