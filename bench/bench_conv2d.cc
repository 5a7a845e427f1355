// Compares the convolutions of a training step with oneDNN's.
// Every row runs one convolution, or one of its gradients, of ResNet-20 on CIFAR with a batch of 64
// in the same process as oneDNN's primitive, in turns, on the same number of threads. oneDNN
// chooses its own layouts; its time includes the conversion to them and back, because the arrays of
// a step are plain on both sides.
#include <omp.h>
#include <unistd.h>
#include <dnnl.hpp>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/ratio.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/kernel_set.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

using dnnl::memory;

struct Layer {
  int64_t in_channels, size, out_channels, kernel, stride;
  int64_t out_size() const { return size / stride; }
  int64_t pad() const { return kernel / 2; }
  std::string text() const {
    return std::to_string(in_channels) + "x" + std::to_string(size) + "x" + std::to_string(size) +
           " to " + std::to_string(out_channels) + ", " + std::to_string(kernel) + "x" +
           std::to_string(kernel) + (stride == 1 ? "" : "/" + std::to_string(stride));
  }
};
constexpr int64_t kBatch = 64;
constexpr Layer kLayers[] = {{3, 32, 16, 3, 1},   {16, 32, 16, 3, 1}, {16, 32, 32, 3, 2},
                             {16, 32, 32, 1, 2},  {32, 16, 32, 3, 1}, {32, 16, 64, 3, 2},
                             {64, 8, 64, 3, 1},   {64, 8, 64, 1, 1},  {64, 56, 64, 3, 1},
                             {256, 14, 256, 3, 1}};

// A plain array, and the same in the layout of a primitive.
class Operand {
 public:
  Operand(const dnnl::engine& engine, const memory::dims& dims, memory::format_tag plain, float* x,
          const memory::desc& wanted)
      : plain_({dims, memory::data_type::f32, plain}, engine, x),
        own_(wanted == plain_.get_desc() ? plain_ : memory(wanted, engine)) {}
  const memory& own() const { return own_; }
  void bring(dnnl::stream& stream) { move(stream, plain_, own_); }
  void give_back(dnnl::stream& stream) { move(stream, own_, plain_); }

 private:
  void move(dnnl::stream& stream, memory& from, memory& to) {
    if (own_.get_desc() == plain_.get_desc()) return;
    if (!reorder_) reorder_ = dnnl::reorder(from, to);
    reorder_.execute(stream, from, to);
  }
  memory plain_, own_;
  dnnl::reorder reorder_;
};

struct Arrays {
  explicit Arrays(const Layer& l)
      : x(array(kBatch * l.in_channels * l.size * l.size, 1)),
        w(array(l.out_channels * l.in_channels * l.kernel * l.kernel, 2)),
        y(array(kBatch * l.out_channels * l.out_size() * l.out_size(), 3)) {}
  static bench::FloatArray array(int64_t count, uint32_t index) {
    auto floats = bench::make_floats(static_cast<size_t>(count));
    const RandomStream random(1, RandomPurpose::kTest, index);
    for (int64_t i = 0; i < count; ++i) {
      floats[static_cast<size_t>(i)] =
          static_cast<float>(random.uniform(static_cast<uint64_t>(i)) - 0.5);
    }
    return floats;
  }
  bench::FloatArray x, w, y;
};

class LayerBench {
 public:
  LayerBench(const Layer& layer, bench::Table& table) : l_(layer), table_(table), arrays_(layer) {}

  void run() {
    using Tag = memory::format_tag;
    const auto any = [](const memory::dims& dims) {
      return memory::desc(dims, memory::data_type::f32, Tag::any);
    };
    const memory::dims x{kBatch, l_.in_channels, l_.size, l_.size};
    const memory::dims w{l_.out_channels, l_.in_channels, l_.kernel, l_.kernel};
    const memory::dims y{kBatch, l_.out_channels, l_.out_size(), l_.out_size()};
    const memory::dims stride{l_.stride, l_.stride}, pad{l_.pad(), l_.pad()};
    const auto algorithm = dnnl::algorithm::convolution_direct;
    const dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, algorithm, any(x), any(w), any(y), stride, pad, pad},
        engine_);
    const dnnl::convolution_backward_data::primitive_desc to_input(
        {algorithm, any(x), any(w), any(y), stride, pad, pad}, engine_, forward);
    const dnnl::convolution_backward_weights::primitive_desc to_weight(
        {algorithm, any(x), any(w), any(y), stride, pad, pad}, engine_, forward);
    const auto operand = [&](const memory::dims& dims, float* data, const memory::desc& wanted) {
      return Operand(engine_, dims, Tag::nchw, data, wanted);
    };
    float *const px = arrays_.x.get(), *const pw = arrays_.w.get(), *const py = arrays_.y.get();

    measure_row("forward",
                {operand(x, px, forward.src_desc()), operand(w, pw, forward.weights_desc())},
                {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS}, operand(y, py, forward.dst_desc()), DNNL_ARG_DST,
                dnnl::convolution_forward(forward), [&] {
                  ConvArgs<float> args = arguments();
                  args.x = px, args.w = pw, args.out = py;
                  active_kernels().f32.conv2d_forward(args);
                });
    measure_row("backward to the input",
                {operand(y, py, to_input.diff_dst_desc()), operand(w, pw, to_input.weights_desc())},
                {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS}, operand(x, px, to_input.diff_src_desc()),
                DNNL_ARG_DIFF_SRC, dnnl::convolution_backward_data(to_input), [&] {
                  ConvArgs<float> args = arguments();
                  args.dy = py, args.w = pw, args.out = px;
                  active_kernels().f32.conv2d_backward_input(args);
                });
    measure_row("backward to the weight",
                {operand(y, py, to_weight.diff_dst_desc()), operand(x, px, to_weight.src_desc())},
                {DNNL_ARG_DIFF_DST, DNNL_ARG_SRC}, operand(w, pw, to_weight.diff_weights_desc()),
                DNNL_ARG_DIFF_WEIGHTS, dnnl::convolution_backward_weights(to_weight), [&] {
                  ConvArgs<float> args = arguments();
                  args.dy = py, args.x = px, args.out = pw;
                  active_kernels().f32.conv2d_backward_weight(args);
                });
  }

 private:
  ConvArgs<float> arguments() const {
    ConvShape s{kBatch,    l_.in_channels, l_.size,       l_.size,      l_.out_channels,
                l_.kernel, l_.kernel,      l_.out_size(), l_.out_size()};
    s.stride_h = s.stride_w = l_.stride;
    s.pad_h = s.pad_w = l_.pad();
    return {.shape = s, .accumulator = &find_accumulator("fp32_fused")};
  }

  void measure_row(const char* work, std::vector<Operand> inputs,
                   const std::vector<int>& input_names, Operand output, int output_name,
                   const dnnl::primitive& primitive, const std::function<void()>& own) {
    const auto out = static_cast<double>(kBatch * l_.out_channels * l_.out_size() * l_.out_size());
    const auto terms = static_cast<double>(l_.in_channels * l_.kernel * l_.kernel);
    const auto peer = [&] {
      for (Operand& input : inputs) input.bring(stream_);
      primitive.execute(stream_, {{input_names[0], inputs[0].own()},
                                  {input_names[1], inputs[1].own()},
                                  {output_name, output.own()}});
      output.give_back(stream_);
      stream_.wait();
    };
    table_.measure({.work = work,
                    .size = l_.text(),
                    .unit = bench::Unit::kGigaflops,
                    .amount = 2 * out * terms,
                    .peer = "oneDNN",
                    .target = kTarget},
                   peer, own);
  }

  // DESIGN, section 9: a training step takes at most PyTorch's time.
  static constexpr double kTarget = 1.0;
  const Layer l_;
  bench::Table& table_;
  Arrays arrays_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
};

// oneDNN uses OpenMP threads: see bench_gemm.cc.
void start_onednn(int threads) {
  omp_set_num_threads(threads);
#pragma omp parallel
  omp_get_thread_num();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") == nullptr) {
    setenv("GOMP_SPINCOUNT", "1000", 1);
    execv("/proc/self/exe", argv);
  }
  const lockstep::bench::Options options =
      lockstep::bench::start(argc, argv, lockstep::start_onednn);
  lockstep::bench::Table table(options);
  for (const lockstep::Layer& layer : lockstep::kLayers) lockstep::LayerBench(layer, table).run();
  table.print();
}
