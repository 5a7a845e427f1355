// What a lane does to every part of a large model, and through it to the loss of the whole.
// A part's loss is the inner product of its output y with the gradient dy that the run sent back.
// With the error d of the lane's y, its change is the sum over the tokens n of g_n d_n, g = dy: the
// first order of the change of the model's loss, an unbiased number of one batch in an untrained
// network and mostly its noise in a trained one. The second order is taken from the squares,
// N/2 sum (g_n d_n)^2, for a loss that is a mean over N tokens: the Gauss-Newton matrix with its
// outer products of gradients (Martens, "New insights and perspectives on the natural gradient
// method", section 8).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "analysis/run/run_view.h"
#include "src/record/run/run_reader.h"
#include "src/train/observer.h"

namespace lockstep {

struct PartEffect {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  std::string name;         // the module's path
  int64_t batches = 0;      // that have it: captured steps of ranks
  int64_t nonfinite = 0;    // of them: where its loss is not finite; left out of what follows
  double first_order = 0;   // of the change of the model's loss, a mean over the batches
  double second_order = 0;  // likewise; NaN: the part has no sums over tokens
  double spread = kNone;    // the standard error of effect() over the batches; NaN: there is one
  // Norm of the difference from the reference over the reference's, of all batches; infinite: so is
  // the lane's; NaN: the part has none. Of the output: means of magnitudes instead, as in the table
  // of watched values.
  double output_error = kNone, input_gradient_error = kNone, weight_gradient_error = kNone;
  // The largest share at one site: of nonzero values that became zero, of all that became infinite
  // or were set to the largest number.
  double to_zero = 0, out_of_range = 0;
  double headroom = kNone;  // octaves from the largest magnitude to the format's; NaN: not narrow
  std::string layer;        // whose forward roundings move the loss most, with their share
  double layer_share = 0;

  bool is_alone() const;  // a sum over the parts leaves it out
  double effect() const { return first_order + (second_order > 0 ? second_order : 0); }
};

// Where a part's numbers are in the records.
struct PartPlaces {
  std::string name;
  int loss = -1;                   // of LaneStep::losses; -1: LaneStep::loss
  double loss_factor = 1;          // micro-batches: a loss is their mean, an effect their sum
  std::vector<size_t> sites = {};  // all of the part
  std::vector<size_t> input_gradients = {}, weight_gradients = {};  // output sites
  std::vector<size_t> token_sums = {};  // of y dy, before the sum over tokens
  std::vector<size_t> watched = {};     // its outputs
};
// Empty: not a run of parts.
std::vector<PartPlaces> part_places(const RunFile& run);

// Adds up one lane's. Requires: not the captured lane.
class PartTally : public Observer {
 public:
  // Both must outlive the object.
  PartTally(const RunFile& run, const std::vector<PartPlaces>& places, int lane);
  void on_step(const StepRecord& record) override;
  std::vector<PartEffect> effects() const;

 private:
  struct Sums {
    std::vector<double> first, second;  // by batch with a finite loss
    int64_t nonfinite = 0;
    double output_error = 0, output = 0;
    double input_error_sq = 0, input_sq = 0, weight_error_sq = 0, weight_sq = 0;
    double to_zero = 0, out_of_range = 0, headroom = std::numeric_limits<double>::infinity();
  };
  void add(const PartPlaces& place, const StepRecord& record, Sums& sums) const;

  const RunFile& run_;
  const std::vector<PartPlaces>& places_;
  int lane_;
  std::vector<double> largest_;    // by site: of its format in this lane; 0: FP32 or unknown
  std::vector<Sums> sums_;         // as places_
  std::vector<double> roundings_;  // by site: of the loss, magnitudes added over the batches
};

}  // namespace lockstep
