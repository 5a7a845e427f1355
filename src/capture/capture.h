// A captured training run as plain data: the model's graph, its state, every batch and mask, what
// the loop did around them, and what PyTorch computed. src/record reads it from a capture file
// (docs/capture-file.md); a replay repeats its steps, `lockstep verify` compares with them. Knows
// nothing of files. Numbers that PyTorch did not record are NaN.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/capture/script_line.h"
#include "src/core/packed_bits.h"
#include "src/data/dataset.h"
#include "src/graph/ir.h"
#include "src/policy/loss_scale.h"
#include "src/update/hyper_parameters.h"

namespace lockstep {

inline constexpr double kNotRecorded = std::numeric_limits<double>::quiet_NaN();

using Tensors = std::map<std::string, Tensor>;    // by name
using Masks = std::map<std::string, PackedBits>;  // by name

// Everything that is kept between steps.
struct CapturedState {
  Tensors values;                            // parameters and buffers, kF32 or kI32
  std::map<std::string, Tensors> optimizer;  // by parameter, then by the optimizer row's state name
  std::map<std::string, int64_t> steps;      // by parameter: steps taken, where torch counts them
};

struct CapturedMicroBatch {
  int64_t graph = 0;  // the index in Capture::graphs
  double loss = kNotRecorded;
  double loss_mult = 1;  // the loop multiplies the loss by this before backward
  Batch inputs;          // by path
  Masks masks;           // by the node that uses them instead of drawing

  double loss_divisor() const { return 1 / loss_mult; }
};
// Makes `batch` hold the inputs and the unpacked masks of one micro-batch while it runs. Reuses the
// memory of the previous micro-batch: memory allocated anew each time would be scattered.
void unpack_batch(const CapturedMicroBatch& micro, Batch& batch);

// What happens to gradients between backward and the optimizer's step.
struct CapturedClip {
  double max_norm = 0;   // 0: not clipped
  double norm_type = 2;  // p of the p-norm; infinity: the largest magnitude
  double max_value = 0;  // of every element, after the norm; 0: not clipped
  bool scaled = false;   // true: the loop clipped before unscaling, a mistake
  double total_norm = kNotRecorded;
};

struct CapturedStep {
  std::vector<CapturedMicroBatch> micro;
  double loss = kNotRecorded;        // the mean over micro-batches
  std::string loss_format = "fp32";  // of the loop's loss: our name
  double scale_before = 1, scale_after = 1;
  int64_t growth_tracker_after = 0;
  bool found_inf = false, stepped = true;
  CapturedClip clip;
  std::vector<HyperValues> hyper;  // by group, all numbers of the optimizer's row
  std::vector<double> grad_norms;  // of the optimizer's gradients, in graph order
  Tensors grads;                   // the same gradients, on verify steps
  bool grads_are_ref32 = false;    // they are CapturedVerify::grads32, and `grads` is empty
  Tensors weights;  // after the step, kF32: those that it changed and no rule repeats
};

// Values inside a forward pass in FP32.
struct CapturedInside {
  // By node, see docs/capture-file.md: the side of its kink, or the place that a pool chose (kI32).
  Masks sides;
  Tensors places;
  std::map<std::string, std::array<double, 4>> acts;  // by node: l2, |max|, mean, least nonzero
};

// A step that PyTorch computed from a known state without autocast, scale or clipping.
struct CapturedVerify {
  int64_t step = 0;
  CapturedState before;
  // `before` is the state before the first captured step, which Capture::start lost.
  bool is_start = false;
  double loss32 = kNotRecorded, loss64 = kNotRecorded;
  Tensors grads32, grads64;  // kF32, kF64
  Masks noise;               // 1 where FP32 itself does not determine the gradient
  CapturedState after;       // of the FP32 step; empty where no step was taken
  Tensors buffers64;         // kF64: buffers after the FP64 step, those that it changed
  std::vector<CapturedInside> micro;
  // After a run has become NaN its losses cannot be compared with anything.
  bool comparable() const { return std::isfinite(loss32) && std::isfinite(loss64); }
};

struct CapturedAmp {
  bool autocast = false;                            // around the whole forward pass
  std::string device_type = "cpu", dtype = "fp16";  // our name of the format
  bool cache_enabled = true;
  bool tf32_matmul = false, tf32_conv = false;
  bool reduced_sums = false;  // partial sums of products may be rounded to dtype
  // "bf16", "tf32": the format that FP32 products on the CPU may use; else torch's word for none.
  std::string cpu_products;
  int64_t threads = 1;  // of PyTorch's CPU kernels; at most kMostCpuThreads
};
struct CapturedScaler {
  bool enabled = false;
  LossScaleSpec spec;
  LossScaleState start;
};

// One call of a part's module: a micro-batch of its capture.
struct CapturedPartCall {
  Tensors outputs, input_gradients;  // kF32, as the module gave and got them; by name of the leaf
};
// The run's own gradient of a weight, where it is not the part's alone: a mean over ranks, of which
// this rank may hold a block.
struct CapturedRunGradient {
  Tensor values;
  Shape offset;  // of the block in the weight; empty: the whole
};
// A module of a larger model, recorded in place. The capture's loss is the inner product of its
// outputs with their gradients.
struct CapturedPart {
  std::string module, module_class;
  int64_t step = 0, rank = 0, world_size = 1;
  double loss_scale = 1;
  std::string own_columns;  // of a linear layer split over ranks: which it has; "": it is whole
  std::string output, input_gradient, gradient;  // how the copy compared with the run, in words
  double output_off = kNotRecorded;              // relative to the norm
  int64_t kept_rows = 0, kept_tokens = 0, rows = 0, tokens = 0;  // of the batch; 0: all
  std::vector<CapturedPartCall> calls;
  Tensors gradients;  // of the weights, with the loss scale: sums over the calls
  std::map<std::string, CapturedRunGradient> run_gradients;
  std::map<std::string, std::string> placements;  // by weight: where its numbers lay in the run
};

struct Capture {
  std::string path, sha256;  // of the file's HDF5 part, as hexadecimal digits
  std::string model_class, torch_version, device, frontend, created_utc;
  int64_t world_size = 1;     // ranks of the loop; the file holds rank 0
  std::vector<Graph> graphs;  // forward graphs, constants with data; one per shape of batch
  // A row of the optimizer table or recorded_updates(); "": only gradients can be replayed.
  std::string optimizer;
  std::string optimizer_class;                   // as PyTorch calls it
  std::vector<std::vector<std::string>> groups;  // the parameters of each
  bool master_weights = false;  // the optimizer holds FP32 copies of narrower weights
  std::string state_codes;  // in which the loop kept large states between two steps; "": in full
  CapturedState start;
  CapturedAmp amp;
  CapturedScaler scaler;
  std::vector<CapturedStep> steps;
  std::vector<CapturedVerify> verify;
  std::vector<std::string> notes;  // for the user: numbers that lanes take from the captured run
  std::vector<std::string> watch;  // RunOptions::watch, as the user of the capture asked
  std::optional<CapturedPart> part;
  ScriptLines lines;  // none in files of older versions
  std::string v0;     // the capture's own check: the graph against the model itself; "": unknown
};

// The optimizer has no rule here, but the file has the weights after every step.
bool records_updates(const Capture& capture);
// There is no optimizer: steps are forward passes. (Updates are recorded, and there are none.)
bool is_inference(const Capture& capture);

// The lane of the captured run itself in run files and reports.
inline constexpr std::string_view kCapturedLane = "captured";

}  // namespace lockstep
