// Steps of one optimizer on gradients from a raw file, so that another program (PyTorch, NumPy) can
// be compared with it. Knows no network.
//
//   lockstep_optimizer_tool NAME[:K=V,...] SCHEDULE FORMAT STEPS DIR [SHAPE [CODES]]
//     SHAPE: of the weight, 24x40 [N]; CODES: how an FP32 optimizer keeps its states
//     reads  DIR/w.f64 (N) and DIR/g.f64 (STEPS,N)
//     writes DIR/out.f64 (N), DIR/lr.f64 (STEPS) and every state, DIR/state_NAME.f64
//   lockstep_optimizer_tool CODES signed|unsigned DIR
//     reads  DIR/w.f64, writes DIR/out.f64: an optimizer state rounded to these codes
// Raw little-endian doubles, rounded to the format when read. Weights, states and arithmetic are in
// FORMAT: fp32, fp64, or fp16 and bf16 with the roundings of torch's CPU steps.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "emulation/format/rounding.h"
#include "emulation/kernels/active_kernels.h"
#include "src/core/error.h"
#include "src/core/tensor.h"
#include "src/core/text.h"
#include "src/update/optimizers.h"
#include "src/update/schedules.h"

namespace lockstep {
namespace {

std::vector<double> read_raw(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw InputError("'" + path + "': cannot be read");
  std::vector<double> values(static_cast<size_t>(file.tellg()) / sizeof(double));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(double)));
  return values;
}

void write_raw(const std::string& path, const std::vector<double>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(double)));
  if (!file) throw InputError("'" + path + "': cannot be written");
}

void encode(const std::vector<OptimizerState>& rows, const StateCodes& codes,
            std::vector<std::vector<float>>& states) {
  for (size_t k = 0; k < states.size(); ++k) {
    active_kernels().compact.round_state(states[k].data(), static_cast<int64_t>(states[k].size()),
                                         codes, /*is_signed=*/!rows[k].divides, nullptr);
  }
}
void encode(const std::vector<OptimizerState>&, const StateCodes&,
            std::vector<std::vector<double>>&) {
  throw InputError("codes: only of FP32 states");
}

template <typename T>
void run(const OptimizerSpec& spec, const HyperChoice& schedule, const Format& format,
         int64_t steps, const std::string& directory, Shape shape, const StateCodes* codes) {
  check_optimizer_spec(spec);
  check_schedule(schedule);
  const Optimizer& optimizer = find_optimizer(spec.name);
  const HyperNumbers numbers = numbers_of(spec);
  const auto start = read_raw(directory + "/w.f64"), gradients = read_raw(directory + "/g.f64");
  if (gradients.size() != start.size() * static_cast<size_t>(steps)) {
    throw InputError(
        fmt::format("{} gradients, {} x {} required", gradients.size(), steps, start.size()));
  }
  const auto rounded = [&](double x) {
    return static_cast<T>(round_to_format(x, format, Rounding::kNearestEven));
  };
  std::vector<T> w(start.size()), g(w.size()), update(w.size());
  std::ranges::transform(start, w.begin(), rounded);
  std::vector<std::vector<T>> states;
  OptimizerArrays<T> arrays;
  if (shape.empty()) shape = {static_cast<int64_t>(w.size())};
  if (element_count(shape) != static_cast<int64_t>(w.size())) {
    throw InputError(fmt::format("{} weights: shape {}", w.size(), to_string(shape)));
  }
  const std::vector<OptimizerState> rows = optimizer.states(numbers, shape);
  for (const OptimizerState& state : rows) {
    states.emplace_back(element_count(state.shape_for(shape)), static_cast<T>(state.initial));
    arrays.states[states.size() - 1] = states.back().data();
  }
  arrays.count = static_cast<int64_t>(w.size());
  arrays.shape = shape;
  arrays.weight = w.data();
  arrays.grad = g.data();
  arrays.state_count = static_cast<int>(states.size());
  arrays.update = update.data();
  arrays.formats = {&format, &format, &format, Rounding::kNearestEven, {}};
  arrays.formats.steps = OptimizerSteps::kTorchCpu;
  std::vector<double> rates;
  for (int64_t step = 0; step < steps; ++step) {
    const auto from = gradients.begin() + step * arrays.count;
    std::transform(from, from + arrays.count, g.begin(), rounded);
    arrays.step = step + 1;
    rates.push_back(scheduled_lr(schedule, numbers["lr"], step, steps));
    optimizer_step(active_kernels(), optimizer, numbers, rates.back(), arrays, nullptr);
    if (codes != nullptr) encode(rows, *codes, states);
  }
  write_raw(directory + "/out.f64", {w.begin(), w.end()});
  write_raw(directory + "/lr.f64", rates);
  size_t k = 0;
  for (const OptimizerState& state : rows) {
    write_raw(fmt::format("{}/state_{}.f64", directory, state.name),
              {states[k].begin(), states[k].end()});
    ++k;
  }
}

void run_codes(const std::string& name, bool is_signed, const std::string& directory) {
  const StateCodes& codes = find_state_codes(name);
  const std::vector<double> values = read_raw(directory + "/w.f64");
  if (!codes.encodes(static_cast<int64_t>(values.size()))) {
    throw InputError(fmt::format("{} values: {} keeps them as they are", values.size(), name));
  }
  std::vector<float> state(values.begin(), values.end());
  active_kernels().compact.round_state(state.data(), static_cast<int64_t>(state.size()), codes,
                                       is_signed, nullptr);
  write_raw(directory + "/out.f64", {state.begin(), state.end()});
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  const std::vector<std::string> args(argv + 1, argv + argc);
  const bool is_codes = args.size() == 3 && (args[1] == "signed" || args[1] == "unsigned");
  constexpr size_t kFewest = 5, kMost = 7;
  if (!is_codes && (args.size() < kFewest || args.size() > kMost)) {
    std::cerr << "usage: lockstep_optimizer_tool NAME[:K=V,...] SCHEDULE FORMAT STEPS DIR "
                 "[SHAPE [CODES]]\n"
                 "       lockstep_optimizer_tool CODES signed|unsigned DIR\n";
    return 2;
  }
  try {
    if (is_codes) {
      run_codes(args[0], args[1] == "signed", args[2]);
      return 0;
    }
    Shape shape;
    if (args.size() > kFewest) {
      for (const std::string& size : split(args[kFewest], 'x')) {
        shape.push_back(std::atoll(size.c_str()));
      }
    }
    const StateCodes* codes = args.size() == kMost ? &find_state_codes(args.back()) : nullptr;
    const HyperChoice spec = parse_schedule(args[0]), schedule = parse_schedule(args[1]);
    const int64_t steps = std::atoll(args[3].c_str());
    if (args[2] == "fp64") {
      run<double>(spec, schedule, find_format("fp64"), steps, args[4], shape, codes);
    } else {
      run<float>(spec, schedule, find_format(args[2]), steps, args[4], shape, codes);
    }
  } catch (const InputError& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return 0;
}
