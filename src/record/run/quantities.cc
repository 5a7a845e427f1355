// The rows, in the order in which `check` compares them: the earliest sign of a change first.
#include "src/record/run/quantities.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <type_traits>

namespace lockstep {
namespace {

constexpr auto kNone = Compared::kNone;
constexpr auto kExact = Compared::kExact;
constexpr auto kTolerance = Compared::kTolerance;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Quantity row_of(const Statistic& statistic) {
  const bool is_count = statistic.kind() == StatisticKind::kCount;
  constexpr std::array kAt = {At::kMeasured, At::kNonzero, At::kCompared};  // as MomentOver
  return {.name = (is_count ? "counts/" : "moments/") + std::string(statistic.name),
          .axis = Axis::kSite,
          .source = std::visit([](auto member) { return Source(member); }, statistic.member),
          .comparison = is_count ? kExact : kTolerance,
          .help = std::string(statistic.help),
          .at = is_count ? At::kEverySite : kAt.at(static_cast<size_t>(statistic.over)),
          .statistic = &statistic};
}

// Sites that sum no products have 0 samples.
Quantity row_of(const HealthColumn& column) {
  const bool is_count = column.count != nullptr;
  return {.name = std::string("sums/") + column.name,
          .axis = Axis::kSite,
          .source = is_count ? Source(column.count) : Source(column.moment),
          .comparison = is_count ? kExact : kTolerance,
          .help = std::string(column.name) + " of the sampled sums of products",
          .absent = 0};
}

// Only of lanes whose engine has a device. A library may choose otherwise in an equal run.
Quantity of_device(const std::string& name, const Source& source, const std::string& help) {
  return {.name = name,
          .axis = Axis::kOne,
          .source = source,
          .comparison = kNone,
          .help = help,
          .absent = 0,
          .optional = true};
}

// Absent from files of earlier versions.
Quantity checksums(const std::string& name, Gathered source, const std::string& what) {
  return {.name = "checksums/" + name,
          .axis = Axis::kDataset,
          .source = source,
          .comparison = kNone,
          .help = "of " + what,
          .optional = true};
}

// What a monitor measures. The rest needs a rounding that the program itself makes, or a reference.
constexpr std::string_view kLive[] = {"scale",
                                      "counts/count",
                                      "counts/source_zero",
                                      "counts/nan",
                                      "moments/abs_max",
                                      "moments/sum_sq",
                                      "updates/stagnant",
                                      "updates/count",
                                      "updates/update_sq",
                                      "updates/weight_sq",
                                      "loss",
                                      "loss_scale/scale",
                                      "loss_scale/found_inf",
                                      "loss_scale/skipped",
                                      "exponent_histogram",
                                      "exponent_histogram_step",
                                      "gradient_norm",
                                      "lr",
                                      "seconds",
                                      "checksums/steps",
                                      "checksums/seconds",
                                      "checksums/histograms"};

// Only of monitors.
Quantity of_live(const std::string& name, const Source& source, const std::string& help,
                 double absent) {
  return {.name = "live/" + name,
          .axis = Axis::kSite,
          .source = source,
          .comparison = kNone,
          .help = help,
          .absent = absent,
          .optional = true};
}

std::vector<Quantity> make_rows() {
  std::vector<Quantity> rows = {
      {"bits_hash", Axis::kSite, &TensorStats::bits_hash, kExact, "hash of every value's bits",
       At::kMeasured},
      {"scale", Axis::kSite, &SiteRecord::scale, kExact, "factor in the site's values",
       At::kMeasured},
  };
  const auto add = [&rows](const std::vector<Quantity>& more) {
    rows.insert(rows.end(), more.begin(), more.end());
  };
  for (const Statistic& statistic : statistics()) rows.push_back(row_of(statistic));
  add({
      {"updates/stagnant", Axis::kSite, &UpdateStats::stagnant, kExact,
       "additions that did not change the stored value", At::kUpdated},
      {"updates/count", Axis::kSite, &UpdateStats::count, kExact,
       "additions to weights, buffers and sums of gradients", At::kUpdated},
      {"updates/update_sq", Axis::kSite, &UpdateStats::update_sq, kTolerance,
       "sum of squared addends", At::kUpdated},
      {"updates/weight_sq", Axis::kSite, &UpdateStats::weight_sq, kTolerance,
       "sum of squared stored values before it", At::kUpdated},
      {"updates/stagnant_sq", Axis::kSite, &UpdateStats::stagnant_sq, kTolerance,
       "sum of squared addends that did not change the stored value", At::kUpdated, kNaN,
       /*optional=*/true},
      {"decisions/count", Axis::kSite, &DecisionStats::count, kExact,
       "captures that decide by values only: recorded decisions", At::kEverySite, 0,
       /*optional=*/true},
      {"decisions/flipped", Axis::kSite, &DecisionStats::flipped, kExact,
       "of these, how many the lane's own values would have taken otherwise", At::kEverySite, 0,
       /*optional=*/true},
      {"decisions/tied", Axis::kSite, &DecisionStats::tied, kExact,
       "of the others, how many chose a value that an element not chosen has, too", At::kEverySite,
       0, /*optional=*/true},
      {"decisions/margin_max", Axis::kSite, &DecisionStats::margin_max, kTolerance,
       "the largest distance between the value chosen and the lane's own choice", At::kEverySite, 0,
       /*optional=*/true},
      {"decisions/margin_sum", Axis::kSite, &DecisionStats::margin_sum, kTolerance,
       "the sum of these distances over the flipped decisions", At::kEverySite, 0,
       /*optional=*/true},
      {"loss", Axis::kOne, &LaneStep::loss, kTolerance, "training loss of the step"},
      {"loss_scale/scale", Axis::kScaler, &ScalerRecord::scale, kExact, "loss scale of the step"},
      {"loss_scale/found_inf", Axis::kScaler, &ScalerRecord::found_inf, kExact,
       "a gradient was not finite"},
      {"loss_scale/skipped", Axis::kScaler, &ScalerRecord::skipped, kExact, "the step was skipped"},
      {"loss_scale/growth_tracker", Axis::kScaler, &ScalerRecord::growth_tracker, kExact,
       "clean steps since the scale last moved"},
      {.name = "loss_scale/culprit_site",
       .axis = Axis::kScaler,
       .source = &ScalerRecord::culprit_site,
       .comparison = kExact,
       .help = "first non-finite site of a step with found_inf",
       .absent = -1},
      {"watched/count", Axis::kWatched, &WatchedStats::count, kNone,
       "elements of the watched value; 0: the step does not compute it", At::kEverySite, 0,
       /*optional=*/true},
      {"watched/compared", Axis::kWatched, &WatchedStats::compared, kNone,
       "of these finite in the lane and in the reference", At::kEverySite, 0, /*optional=*/true},
      {"watched/nonfinite", Axis::kWatched, &WatchedStats::nonfinite, kNone,
       "of these finite in the reference alone", At::kEverySite, 0, /*optional=*/true},
      {"watched/reference_sum", Axis::kWatched, &WatchedStats::reference_sum, kNone,
       "sum of abs(reference) over those compared", At::kEverySite, kNaN, /*optional=*/true},
      {"watched/error_sum", Axis::kWatched, &WatchedStats::error_sum, kNone,
       "sum of abs(lane - reference) over those compared", At::kEverySite, kNaN,
       /*optional=*/true},
      {"watched/error_max", Axis::kWatched, &WatchedStats::error_max, kNone,
       "the largest abs(lane - reference)", At::kEverySite, kNaN, /*optional=*/true},
      {"watched/kl_sum", Axis::kWatched, &WatchedStats::kl_sum, kNone,
       "log-probabilities only: sum of r - 1 - log r, r = exp(lane - reference)", At::kEverySite,
       kNaN, /*optional=*/true},
      {"eval/steps_done", Axis::kOne, &Evaluation::steps_done, kExact,
       "training steps before the evaluation"},
      {"eval/loss", Axis::kOne, &Evaluation::loss, kTolerance, "held-out loss"},
      {"eval/accuracy", Axis::kOne, &Evaluation::accuracy, kTolerance, "held-out accuracy, 0..1"},
      {"eval/example_count", Axis::kOne, &Evaluation::example_count, kExact,
       "held-out examples of the evaluation"},
      {"sums/step", Axis::kOne, Gathered::kSampleSteps, kExact,
       "steps that sampled sums of products"},
  });
  for (const HealthColumn& column : health_columns()) rows.push_back(row_of(column));
  add({
      {"loss_effect/rounding", Axis::kSite, &LossEffect::rounding, kNone,
       "change of the loss by the digits that this forward rounding took, to first order",
       At::kEverySite, 0, /*optional=*/true},
      {"loss_effect/range", Axis::kSite, &LossEffect::range, kNone,
       "the same by values that became zero or were set to the largest number", At::kEverySite, 0,
       /*optional=*/true},
      {"exponent_histogram", Axis::kSiteAndBin, Gathered::kHistograms, kExact,
       "exponent histograms of single steps, by site and bin"},
      {"exponent_histogram_step", Axis::kOne, Gathered::kHistogramSteps, kExact,
       "steps with their own histogram"},
      {"exponent_histogram_50", Axis::kSiteAndBin, Gathered::kBlockSums, kExact,
       "exponent histograms, summed over the run"},
      {"exponent_histogram_50_steps", Axis::kOne, Gathered::kBlockSteps, kExact,
       "steps that those sums cover"},
      {"gradient_norm", Axis::kOne, &LaneStep::gradient_norm, kTolerance,
       "norm of all gradients before clipping; NaN: none", At::kEverySite, kNaN, /*optional=*/true},
      {"gradient_norms", Axis::kParameter, &LaneStep::gradient_norms, kTolerance,
       "captures only: norm of every parameter's gradient; NaN: none", At::kEverySite, kNaN,
       /*optional=*/true},
      {"lr", Axis::kGroup, &LaneStep::lr, kTolerance, "learning rate of every parameter group",
       At::kEverySite, kNaN, /*optional=*/true},
      {"attempts", Axis::kOne, &LaneStep::attempts, kExact, "how often the step was computed"},
      {.name = "seconds",
       .axis = Axis::kOne,
       .source = &LaneStep::seconds,
       .comparison = kNone,
       .help =
           "time of this lane's work; differs between equal runs. On several threads lanes overlap",
       .absent = 0},
      {"losses/*", Axis::kLoss, &LaneStep::losses, kNone,
       "training loss of the step, one for each named loss of the graph", At::kEverySite, kNaN,
       /*optional=*/true},
      of_live("stagnant_bf16", &LiveStats::stagnant_bf16,
              "monitors only: updated weights that BF16 would have left as they were", 0),
      of_live("largest_rank", &LiveStats::largest_rank,
              "monitors only: the rank that had abs_max; -1: not known", -1),
      of_live("largest_micro_batch", &LiveStats::largest_micro_batch, "and its micro-batch", -1),
      of_live("nonfinite_rank", &LiveStats::nonfinite_rank,
              "monitors only: the first rank with a value that is not finite; -1: none", -1),
      of_live("nonfinite_micro_batch", &LiveStats::nonfinite_micro_batch, "and its micro-batch",
              -1),
      of_device("device/products", &DeviceWork::products, "calls for products on a device"),
      of_device("device/bytes_up", &DeviceWork::bytes_up,
                "bytes copied to the device; may differ between equal runs"),
      of_device("device/bytes_down", &DeviceWork::bytes_down, "bytes copied back"),
      of_device("device/bytes_kept", &DeviceWork::bytes_kept,
                "bytes of factors that were on the device already; may differ, too"),
      of_device("device_products/step", &DeviceProduct::step, "the first step with such products"),
      of_device("device_products/site", &DeviceProduct::site,
                "site of the sums, or of the op's output; -1: none"),
      of_device("device_products/m", &DeviceProduct::m, "rows of the products"),
      of_device("device_products/n", &DeviceProduct::n, "columns of the products"),
      of_device("device_products/k", &DeviceProduct::k, "terms of each sum"),
      of_device("device_products/batch", &DeviceProduct::batch, "products in one call"),
      of_device("device_products/algorithm", &DeviceProduct::algorithm,
                "the library's algorithm; -1, here and below: it has no such number"),
      of_device("device_products/tile", &DeviceProduct::tile, "its tile"),
      of_device("device_products/stages", &DeviceProduct::stages, "its stages"),
      of_device("device_products/split_k", &DeviceProduct::split_k, "its split-k"),
      of_device("device_products/reduction", &DeviceProduct::reduction, "its reduction scheme"),
      of_device("device_products/most_parts", &DeviceProduct::most_parts,
                "parts of k that it may have summed apart, at most; 1: one chain"),
      checksums("steps", Gathered::kStepChecksums,
                "a step's other rows, but not of its time and copied bytes"),
      checksums(
          "seconds", Gathered::kSecondsChecksums,
          "a step's time and the bytes copied to a device, which may differ between equal runs"),
      checksums("evaluations", Gathered::kEvaluationChecksums, "an evaluation"),
      checksums("samples", Gathered::kSampleChecksums, "a step's sampled sums of products"),
      checksums("histograms", Gathered::kHistogramChecksums, "a step's exponent histograms"),
      checksums("blocks", Gathered::kBlockChecksums, "the sums of 50 steps' exponent histograms"),
      checksums("device_products", Gathered::kProductChecksums, "a kind of product on a device"),
  });
  for (Quantity& row : rows) {
    row.live = row.is_of_live() || std::ranges::find(kLive, row.name) != std::end(kLive);
  }
  return rows;
}

template <typename Value>
constexpr Storage storage_of() {
  if constexpr (std::is_same_v<Value, uint64_t>) return Storage::kU64;
  if constexpr (std::is_same_v<Value, int64_t>) return Storage::kI64;
  if constexpr (std::is_same_v<Value, int32_t>) return Storage::kI32;
  if constexpr (std::is_same_v<Value, bool>) return Storage::kU8;
  return Storage::kF64;  // double and rows of it
}

struct StorageOf {
  Storage operator()(Gathered gathered) const {
    if (gathered == Gathered::kHistograms) return Storage::kU32;
    const bool is_whole = gathered == Gathered::kBlockSums || gathered >= Gathered::kStepChecksums;
    return is_whole ? Storage::kU64 : Storage::kI64;
  }
  template <typename Value, typename Record>
  Storage operator()(Value Record::*) const {
    return storage_of<Value>();
  }
};

struct RowsOf {
  Rows operator()(Gathered gathered) const {
    constexpr std::array kRows = {Rows::kSample,    Rows::kHistogram,  Rows::kHistogram,
                                  Rows::kBlock,     Rows::kBlock,      Rows::kStep,
                                  Rows::kStep,      Rows::kEvaluation, Rows::kSample,
                                  Rows::kHistogram, Rows::kBlock,      Rows::kProduct};
    return kRows.at(static_cast<size_t>(gathered));
  }
  template <typename Value, typename Record>
  Rows operator()(Value Record::*) const {
    if (std::is_same_v<Record, Evaluation>) return Rows::kEvaluation;
    if (std::is_same_v<Record, DeviceProduct>) return Rows::kProduct;
    const bool is_sampled =
        std::is_same_v<Record, AccumulatorHealth> || std::is_same_v<Record, LossEffect>;
    return is_sampled ? Rows::kSample : Rows::kStep;
  }
};

}  // namespace

std::string_view to_string(Storage storage) {
  constexpr std::array<std::string_view, 6> kNames = {"f64", "u64", "i64", "u32", "i32", "u8"};
  return kNames.at(static_cast<size_t>(storage));
}

std::string_view to_string(Rows rows) {
  constexpr std::array<std::string_view, 6> kNames = {"step",      "evaluation", "sample",
                                                      "histogram", "block",      "product"};
  return kNames.at(static_cast<size_t>(rows));
}

std::string axes_text(const Quantity& quantity) {
  constexpr std::array<std::string_view, 9> kAxisNames = {"",       ", group",     ", parameter",
                                                          "",       ", scaler",    ", value",
                                                          ", site", ", site, bin", ", dataset"};
  return std::string(to_string(quantity.rows())) +
         std::string(kAxisNames.at(static_cast<size_t>(quantity.axis)));
}

Storage Quantity::storage() const {
  return std::visit(StorageOf{}, source);
}
Rows Quantity::rows() const {
  return std::visit(RowsOf{}, source);
}

std::span<const Quantity> quantities() {
  static const std::vector<Quantity> rows = make_rows();
  return rows;
}

const Quantity& quantity_of(const Source& source) {
  const auto found = std::ranges::find(quantities(), source, &Quantity::source);
  if (found == quantities().end()) throw std::logic_error("no such recorded quantity");
  return *found;
}

}  // namespace lockstep
