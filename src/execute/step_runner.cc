// See step_runner.h.
#include "src/execute/step_runner.h"

#include <algorithm>
#include <stdexcept>

#include "emulation/kernels/quantize.h"
#include "src/core/error.h"
#include "src/execute/addition.h"
#include "src/execute/storage.h"
#include "src/lower/lower.h"

namespace lockstep {

StepRunner::StepRunner(const Graph& graph, const SiteTable& sites, const Policy& policy,
                       const ExecutionRules& rules)
    : graph_(graph),
      storage_sites_(sites.storage_sites()),
      rounding_(policy.rounding),
      executor_(graph, sites, lower(graph, sites, policy, rules.container == Container::kF64),
                rules) {
  gradient_sites_.resize(pass_count(graph));
  for (size_t pass = 0; pass < gradient_sites_.size(); ++pass) {
    for (const auto& [name, id] : pass_gradients(graph, pass)) {
      const auto [node, output] = split_value_id(id);
      gradient_sites_[pass][name] = sites.find(node, Point::kOutput, output);
    }
  }
  const bool goes_back =
      std::ranges::any_of(graph.inputs, [](const GraphInput& input) { return is_seed(input.id); });
  if (!goes_back) return;
  seeds_.assign(pass_count(graph), Tensor({}, rules.container));
  for (size_t pass = 0; pass < seeds_.size(); ++pass) {
    values().bind(seed_id(graph, pass), seeds_[pass]);
  }
}

void StepRunner::bind_parameter(const std::string& name, const Tensor& tensor) {
  values().bind("p:" + name, tensor);
}
void StepRunner::bind_buffer(const std::string& name, const Tensor& tensor) {
  values().bind("b:" + name, tensor);
}
const Format* StepRunner::parameter_format(const std::string& name) const {
  return values().external_format("p:" + name);
}
const Format* StepRunner::buffer_format(const std::string& name) const {
  return values().external_format("b:" + name);
}

// -1: no site. Its roundings then draw from a stream of their own.
int32_t StepRunner::storage_site(const std::string& value_id) const {
  const auto found = storage_sites_.find(value_id);
  return found == storage_sites_.end() ? -1 : found->second;
}

void StepRunner::begin(const StepPass& pass, const Batch& batch, const StepRunner* reference,
                       std::span<SiteRecord> records) {
  if (pass.loss_scales.size() != pass_count(graph_)) {
    throw std::logic_error("a loss scale for every backward pass required");
  }
  key_ = pass.key;
  for (size_t i = 0; i < seeds_.size(); ++i) {
    // A quotient of two floats, rounded from double to float, is the float quotient.
    Tensor seed({}, Container::kF64);
    seed.as<double>()[0] = pass.loss_scales[i] / pass.loss_divisor;
    const Format* format = values().external_format(seed_id(graph_, i));
    store(kernels(), seed, seeds_[i], {format, Rounding::kNearestEven, {}});
  }
  executor_.begin_step(pass.key, pass.loss_scales, pass.measuring);
  const bool measures = pass.measuring.detail != SiteDetail::kNothing;
  bind_inputs(batch, reference, measures ? records : std::span<SiteRecord>());
}

void StepRunner::bind_inputs(const Batch& batch, const StepRunner* reference,
                             std::span<SiteRecord> records) {
  const Executor* compared = reference == nullptr ? nullptr : &reference->executor_;
  for (const GraphInput& input : graph_.inputs) {
    if (is_seed(input.id)) continue;
    const auto it = batch.find(input.path);
    if (it == batch.end()) {
      throw InputError("model '" + graph_.name + "' needs an input '" + input.path +
                       "' that the data does not have");
    }
    const Format* format = values().external_format(input.id);
    const int32_t site = storage_site(input.id);
    const bool measure = !records.empty() && site >= 0;
    const bool as_it_is = format == nullptr || (format->is_fp32() && executor_.rules().container ==
                                                                         it->second.container());
    if (as_it_is) {
      values().bind(input.id, it->second);
      if (measure) executor_.record_bound(input.id, site, nullptr, compared, records);
      continue;
    }
    Tensor& copy = converted_inputs_[input.id];
    if (copy.empty()) copy = Tensor(it->second.shape(), executor_.rules().container);
    TensorStats stats;
    store(kernels(), it->second, copy,
          {format, rounding_, {key_.seed, key_.stream, static_cast<uint32_t>(site), key_.step}},
          measure ? &stats : nullptr);
    values().bind(input.id, copy);
    if (measure) executor_.record_bound(input.id, site, &stats, compared, records);
  }
  executor_.forget_masks();
  for (const auto& [name, tensor] : batch) {
    if (name.starts_with(kMaskPrefix)) executor_.give_mask(name.substr(kMaskPrefix.size()), tensor);
  }
}

void StepRunner::run_node(int node, const StepRunner* reference, std::span<SiteRecord> records) {
  executor_.run_node(node, reference == nullptr ? nullptr : &reference->executor_, records);
}

bool StepRunner::is_backward(int node) const {
  return graph_.nodes[static_cast<size_t>(node)].is_backward();
}

void StepRunner::run_all() {
  for (int node = 0; node < node_count(); ++node) run_node(node, nullptr, {});
}

void StepRunner::run_forward() {
  for (int node = 0; node < node_count(); ++node) {
    if (!is_backward(node)) run_node(node, nullptr, {});
  }
}

double StepRunner::loss() const {
  return first_value(values().of(graph_.loss));
}
double StepRunner::loss(const std::string& name) const {
  return first_value(values().of(graph_.outputs.at("loss/" + name)));
}

const Tensor& StepRunner::gradient(const std::string& parameter, size_t pass) const {
  return values().of(pass_gradients(graph_, pass).at(parameter));
}

int32_t StepRunner::gradient_site(const std::string& parameter, size_t pass) const {
  return gradient_sites_[pass].at(parameter);
}

UpdateRecord StepRunner::add_gradient(const std::string& parameter, size_t pass, bool first,
                                      const Format* format, Tensor& total, bool measure) const {
  const Tensor& g = gradient(parameter, pass);
  UpdateRecord record;
  const auto add = [&]<typename T>(T) {
    T* sum = total.as<T>().data();
    const T* addend = g.as<T>().data();
    const std::vector<T> before(sum, measure && !first ? sum + g.size() : sum);
    if (first) {
      std::copy_n(addend, g.size(), sum);
    } else {
      kernels().of<T>().add(sum, addend, sum, g.size());
    }
    if (!first || !contains(*format, *parameter_format(parameter))) {
      quantize<T>(kernels(), total.as<T>(), total.as<T>(), {format}, nullptr);
    }
    if (!measure) return;
    const auto old = [&](int64_t i) {
      return first ? 0.0 : static_cast<double>(before[static_cast<size_t>(i)]);
    };
    const auto added = [&](int64_t i) { return static_cast<double>(addend[i]); };
    record = {true, measure_addition(g.size(), old, added, sum)};
  };
  executor_.rules().container == Container::kF64 ? add(double()) : add(float());
  return record;
}

// Values already have their buffer's format. A value may itself be another buffer: it is read
// before any buffer changes.
void StepRunner::take_mutations(std::map<std::string, Tensor>& buffers) const {
  std::map<std::string, Tensor> read_before;  // by value id
  for (const Mutation& mutation : graph_.mutations) {
    if (!mutation.value.starts_with("b:")) continue;
    read_before.try_emplace(mutation.value, values().of(mutation.value));
  }
  for (const Mutation& mutation : graph_.mutations) {
    const auto kept = read_before.find(mutation.value);
    const Tensor& value = kept == read_before.end() ? values().of(mutation.value) : kept->second;
    const int32_t site = storage_site("b:" + mutation.buffer);
    store(kernels(), value, buffers.at(mutation.buffer),
          storage_rounding(buffer_format(mutation.buffer), rounding_, key_,
                           static_cast<uint32_t>(site)));
  }
}

void StepRunner::forget_values() {
  values().forget();
  converted_inputs_.clear();
}

}  // namespace lockstep
