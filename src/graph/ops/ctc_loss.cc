// ctc_loss: -ln of the probability that a network's outputs over time, blanks and repetitions left
// out, spell a target. Operands log probabilities (T,N,C), targets (N,S), input lengths (N), target
// lengths (N). Alphas and betas are in double.
// Source: A. Graves et al., "Connectionist Temporal Classification", ICML 2006, section 4.
#include <algorithm>
#include <cmath>
#include <limits>

#include "emulation/math/functions.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

double log_of_sum(double a, double b) {
  const double most = std::max(a, b), least = std::min(a, b);
  if (least == kImpossible) return most;
  return most + lockstep_log1p(lockstep_exp(least - most));
}

// One sample: its log probabilities by time and symbol, the symbols being the target's classes with
// a blank before, between and after them.
struct Sample {
  int64_t times = 0;
  std::vector<int64_t> classes = {};  // of the symbols
  std::vector<double> log_probability = {};

  size_t symbols() const { return classes.size(); }
  double at(int64_t t, size_t s) const {
    return log_probability[static_cast<size_t>(t) * symbols() + s];
  }
  bool may_skip(size_t s) const { return s >= 2 && classes[s] != classes[s - 2]; }
};

template <typename T>
Sample sample_of(const OpCall& call, int64_t n) {
  const Shape &shape = input_shape(call, 0), &targets = input_shape(call, 1);
  const int64_t blank = int_attribute(call.node, "blank", 0);
  Sample sample{.times = call.inputs[2]->as<int32_t>()[static_cast<size_t>(n)]};
  const int64_t length = call.inputs[3]->as<int32_t>()[static_cast<size_t>(n)];
  const bool fits =
      sample.times >= 0 && sample.times <= shape[0] && length >= 0 && length <= targets[1];
  require(fits, call.node,
          "sample " + std::to_string(n) + " has " + std::to_string(sample.times) + " times and " +
              std::to_string(length) + " labels, must have at most " + std::to_string(shape[0]) +
              " and " + std::to_string(targets[1]));
  const int32_t* labels = call.inputs[1]->as<int32_t>().data() + n * targets[1];
  for (int64_t s = 0; s < 2 * length + 1; ++s) {
    const int64_t label = s % 2 == 0 ? blank : labels[s / 2];
    require(
        label >= 0 && label < shape[2], call.node,
        "label " + std::to_string(label) + ", must be from 0 to " + std::to_string(shape[2] - 1));
    sample.classes.push_back(label);
  }
  const T* x = input<T>(call, 0);
  for (int64_t t = 0; t < sample.times; ++t) {
    for (const int64_t label : sample.classes) {
      sample.log_probability.push_back(
          static_cast<double>(x[(t * shape[1] + n) * shape[2] + label]));
    }
  }
  return sample;
}

// ln of the probability of the symbols up to s at time t, the paper's alpha.
std::vector<double> alphas(const Sample& sample) {
  const size_t symbols = sample.symbols();
  std::vector<double> found(static_cast<size_t>(sample.times) * symbols, kImpossible);
  for (int64_t t = 0; t < sample.times; ++t) {
    double* now = found.data() + static_cast<size_t>(t) * symbols;
    const double* before = t == 0 ? nullptr : now - symbols;
    for (size_t s = 0; s < symbols; ++s) {
      double sum = kImpossible;
      if (before == nullptr) {
        sum = s < 2 ? 0 : kImpossible;
      } else {
        sum = before[s];
        if (s >= 1) sum = log_of_sum(sum, before[s - 1]);
        if (sample.may_skip(s)) sum = log_of_sum(sum, before[s - 2]);
      }
      now[s] = sum + sample.at(t, s);
    }
  }
  return found;
}

// The same from the end: of the symbols from s on at time t.
std::vector<double> betas(const Sample& sample) {
  const size_t symbols = sample.symbols();
  std::vector<double> found(static_cast<size_t>(sample.times) * symbols, kImpossible);
  for (int64_t t = sample.times; t-- > 0;) {
    double* now = found.data() + static_cast<size_t>(t) * symbols;
    const double* after = t + 1 == sample.times ? nullptr : now + symbols;
    for (size_t s = 0; s < symbols; ++s) {
      double sum = kImpossible;
      if (after == nullptr) {
        sum = s + 2 >= symbols ? 0 : kImpossible;
      } else {
        sum = after[s];
        if (s + 1 < symbols) sum = log_of_sum(sum, after[s + 1]);
        if (s + 2 < symbols && sample.may_skip(s + 2)) sum = log_of_sum(sum, after[s + 2]);
      }
      now[s] = sum + sample.at(t, s);
    }
  }
  return found;
}

double loss_of(const Sample& sample, const std::vector<double>& alpha) {
  if (sample.times == 0) return sample.symbols() == 1 ? 0 : -kImpossible;
  const double last = alpha.back();
  return -(sample.symbols() == 1 ? last : log_of_sum(last, alpha[alpha.size() - 2]));
}

std::vector<TensorType> infer_forward(const Node& node, std::span<const TensorType> inputs) {
  require_float(node, inputs, 0);
  require_rank(node, inputs, 0, 3, "(T,N,C)");
  for (const size_t i : {1, 2, 3}) require_int(node, inputs, i);
  const int64_t n = inputs[0].shape[1];
  require_rank(node, inputs, 1, 2, "(N,S)");
  require_shape(node, inputs, 1, {n, inputs[1].shape[1]}, "(N,S)");
  for (const size_t i : {2, 3}) require_shape(node, inputs, i, {n}, "(N)");
  bool_attribute(node, "zero_infinity", false);
  int_attribute(node, "blank", 0);
  return {{{n}}};
}

void vjp(GradientBuilder& builder, const Node& node) {
  std::vector<std::string> inputs = node.inputs;
  inputs.push_back(builder.output_gradient(node));
  builder.add_node(node, "ctc_loss_backward", std::move(inputs), node.attributes, {0});
}

void run_forward(const OpCall& call) {
  const bool zero_infinity = bool_attribute(call.node, "zero_infinity", false);
  dispatch(call, [&]<typename T>(T*) {
    T* y = output<T>(call, 0);
    for (int64_t n = 0; n < input_shape(call, 0)[1]; ++n) {
      const Sample sample = sample_of<T>(call, n);
      const double loss = loss_of(sample, alphas(sample));
      y[n] = zero_infinity && std::isinf(loss) ? T(0) : static_cast<T>(loss);
    }
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  const Shape y = infer_forward(node, inputs.first(4))[0].shape;
  require_float(node, inputs, 4);
  require_shape(node, inputs, 4, y, "(N)");
  return {{inputs[0].shape}};
}

// d/dx = exp(x) - exp(alpha + beta - x + loss), summed over the symbols of a class: torch's, whose
// first term log_softmax's derivative takes away again.
void run_backward(const OpCall& call) {
  const Shape& shape = input_shape(call, 0);
  const bool zero_infinity = bool_attribute(call.node, "zero_infinity", false);
  call.outputs[0]->fill_zero();
  dispatch(call, [&]<typename T>(T*) {
    const T *x = input<T>(call, 0), *dy = input<T>(call, 4);
    T* dx = output<T>(call, 0);
    for (int64_t n = 0; n < shape[1]; ++n) {
      const Sample sample = sample_of<T>(call, n);
      const std::vector<double> alpha = alphas(sample), beta = betas(sample);
      const double loss = loss_of(sample, alpha);
      if (zero_infinity && std::isinf(loss)) continue;
      std::vector<double> through(static_cast<size_t>(shape[2]));
      for (int64_t t = 0; t < sample.times; ++t) {
        std::fill(through.begin(), through.end(), kImpossible);
        for (size_t s = 0; s < sample.symbols(); ++s) {
          const size_t at = static_cast<size_t>(t) * sample.symbols() + s;
          double& sum = through[static_cast<size_t>(sample.classes[s])];
          sum = log_of_sum(sum, alpha[at] + beta[at]);
        }
        for (int64_t k = 0; k < shape[2]; ++k) {
          const int64_t place = (t * shape[1] + n) * shape[2] + k;
          const auto log = static_cast<double>(x[place]);
          const double share = lockstep_exp(through[static_cast<size_t>(k)] + loss - log);
          dx[place] = static_cast<T>((lockstep_exp(log) - share) * static_cast<double>(dy[n]));
        }
      }
    }
  });
}

}  // namespace

std::vector<OpDef> ctc_loss_ops() {
  return {
      {.name = "ctc_loss",
       .help = "-ln of the probability of each target, blanks (class `blank`) and repetitions left "
               "out; zero_infinity: 0 for impossible ones; operands log probabilities (T,N,C), "
               "targets (N,S), input lengths (N), target lengths (N)",
       .source =
           "torch.nn.functional.ctc_loss; CUDA autocast: not listed, runs in its input's type",
       .min_inputs = 4,
       .max_inputs = 4,
       .attributes = {"blank", "zero_infinity"},
       .infer = infer_forward,
       .vjp = vjp,
       .run = run_forward,
       .meaning = {.is_loss = true}},
      {.name = "ctc_loss_backward",
       .help = "dx; operands those of ctc_loss, dy",
       .source = "torch's derivative of ctc_loss",
       .min_inputs = 5,
       .max_inputs = 5,
       .attributes = {"blank", "zero_infinity"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
