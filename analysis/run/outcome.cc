// The arithmetic of a lane's verdict.
#include "analysis/run/outcome.h"

#include <algorithm>
#include <array>
#include <boost/math/distributions/binomial.hpp>
#include <cmath>
#include <limits>
#include <numeric>

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Standard deviation; 0 for one value.
double deviation_of(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double mean = mean_of(values);
  double sum = 0;
  for (const double x : values) sum += (x - mean) * (x - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

// What one number (the gap, the drop of answers) is measured against.
struct Paired {
  std::vector<double> values;  // by seed
  std::vector<double> noises;  // by seed: the bound of one value without chaos
  std::vector<double> chaos;   // the twins' values, all seeds pooled
  size_t fewest_chaos = 1;     // from which they are a bound

  double root() const { return std::sqrt(static_cast<double>(values.size())); }
  double mean() const { return mean_of(values); }
  double noise() const {
    double sum = 0;
    for (const double noise : noises) sum += noise * noise;
    return std::sqrt(sum) / static_cast<double>(values.size());
  }
  double standard_error() const { return deviation_of(values) / root(); }
  double seed_bound() const {
    if (values.size() < 2) return kInfinity;
    return t_quantile(static_cast<int64_t>(values.size()) - 1) * standard_error();
  }
  double chaos_mean() const { return chaos_of(chaos) / root(); }
  double chaos_limit() const {
    return chaos.size() < fewest_chaos ? kInfinity : chaos_bound(chaos) / root();
  }

  bool is_beyond() const { return mean() > std::max({noise(), chaos_mean(), standard_error()}); }
  bool is_worse() const {
    const bool several = values.size() > 1;
    const double chaos_here = several && std::isinf(chaos_limit()) ? 0 : chaos_limit();
    return mean() > std::max({noise(), chaos_here, several ? seed_bound() : 0.0});
  }
  // See LaneJudgement. One seed has no scatter of its own; what one ulp does is the least it can
  // be.
  int64_t seeds_to_decide() const {
    const bool several = values.size() > 1;
    const double scatter = several ? deviation_of(values) : chaos_of(chaos);
    if (scatter == 0) return 0;
    const double limit = std::isinf(chaos_limit()) ? 0 : chaos_limit();
    return lockstep::seeds_to_decide(mean(), scatter, std::max(noise(), limit) * root());
  }
};

// One seed of a lane.
struct Course {
  bool broke = false, learned = false;
  double tail_loss = 0, gap = 0, batch_noise = 0;
  int64_t tail_steps = 0;
};

// Without the losses of skipped steps that are not finite: no update was made from them.
std::vector<double> without_skips(const JudgeInput& in) {
  std::vector<double> kept;
  for (size_t i = 0; i < in.lane.size(); ++i) {
    const bool skipped = std::ranges::count(in.skips, static_cast<int64_t>(i)) > 0;
    if (!skipped || std::isfinite(in.lane[i])) kept.push_back(in.lane[i]);
  }
  return kept;
}

double fall_of(std::span<const double> loss) {
  return loss.empty() ? 0 : loss.front() - tail_mean(loss);
}
bool learned(std::span<const double> loss) {
  return !loss.empty() && fall_of(loss) > learning_noise(loss);
}

Course measure(const JudgeInput& in) {
  Course out;
  const std::vector<double> lane = without_skips(in);
  const size_t behind = std::min(in.skips.size(), in.reference.size() / 2);
  const std::span<const double> reference = in.reference.first(in.reference.size() - behind);
  out.tail_loss = tail_mean(lane);
  out.tail_steps = static_cast<int64_t>(tail_of(lane).size());
  out.gap = out.tail_loss - tail_mean(reference);
  out.batch_noise = batch_noise(lane, reference);
  out.broke = in.died_at >= 0 || !std::isfinite(out.tail_loss);
  out.learned = learned(lane);
  return out;
}

Paired gaps_of(std::span<const JudgeInput> seeds, std::span<const Course> courses) {
  Paired gaps;
  for (size_t i = 0; i < seeds.size(); ++i) {
    if (courses[i].broke && courses.size() > 1) continue;
    gaps.values.push_back(courses[i].gap);
    gaps.noises.push_back(courses[i].batch_noise);
    for (const std::span<const double> twin : seeds[i].twins) {
      const std::vector<double> more = chaos_gaps(seeds[i].reference, twin);
      gaps.chaos.insert(gaps.chaos.end(), more.begin(), more.end());
    }
  }
  return gaps;
}

// No values unless every seed evaluated as many answers of both.
Paired drops_of(std::span<const JudgeInput> seeds, std::span<const Course> courses) {
  Paired drops{.values = {}, .noises = {}, .chaos = {}, .fewest_chaos = kFewestTwins};
  const int64_t answers = seeds.front().held_out.answers;
  for (size_t i = 0; i < seeds.size(); ++i) {
    if (courses[i].broke && courses.size() > 1) continue;
    const HeldOut &lane = seeds[i].held_out, &reference = seeds[i].reference_held_out;
    if (answers == 0 || lane.answers != answers || reference.answers != answers) {
      return Paired{};
    }
    drops.values.push_back(static_cast<double>(reference.correct - lane.correct));
    const auto variance = [](const HeldOut& h) {
      const double share = static_cast<double>(h.correct) / static_cast<double>(h.answers);
      return static_cast<double>(h.correct) * (1 - share);
    };
    drops.noises.push_back(normal_quantile() * std::sqrt(variance(lane) + variance(reference)));
    for (const HeldOut& twin : seeds[i].twins_held_out) {
      if (twin.answers != answers) continue;
      drops.chaos.push_back(static_cast<double>(reference.correct - twin.correct));
    }
  }
  return drops;
}

// A single twin may be close by luck, so the largest drop counts as what a twin did.
double largest(std::span<const double> drops) {
  double most = 0;
  for (const double drop : drops) most = std::max(most, std::fabs(drop));
  return most;
}

// In some seed: such a lane shows nothing of training.
bool took_no_step(std::span<const JudgeInput> seeds) {
  return std::ranges::any_of(seeds, [](const JudgeInput& seed) {
    return !seed.lane.empty() && seed.skips.size() == seed.lane.size();
  });
}

bool reference_learned(std::span<const JudgeInput> seeds) {
  double fall = 0, noise_sq = 0;
  for (const JudgeInput& seed : seeds) {
    fall += fall_of(seed.reference);
    noise_sq += std::pow(learning_noise(seed.reference), 2);
  }
  return fall > std::sqrt(noise_sq);  // means: both divided by the number of seeds
}

// Whether `count` of `seeds` is more than events of probability kErrorRate explain, at kErrorRate:
// 1 of 1, 2 of 2 to 15, ...
bool beyond_chance(int64_t count, int64_t seeds) {
  if (count == 0 || seeds == 1) return count == 1;  // of one seed, chance is kErrorRate itself
  const boost::math::binomial chance(static_cast<double>(seeds), kErrorRate);
  return boost::math::cdf(boost::math::complement(chance, static_cast<double>(count - 1))) <=
         kErrorRate;
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  constexpr std::array<std::string_view, 8> kNames = {
      "reference", "fine", "unclear", "worse", "stalled", "broke", "too short", "not judged"};
  return kNames[static_cast<size_t>(verdict)];
}

int64_t seeds_to_decide(double mean, double scatter, double other_bound) {
  for (int64_t n = 2; n <= kMostDecidingSeeds; ++n) {
    const double bound = std::max(t_quantile(n - 1) * scatter, other_bound);
    if (bound / std::sqrt(static_cast<double>(n)) < mean) return n;
  }
  return kMostDecidingSeeds + 1;
}

LaneJudgement judge_seeds(std::span<const JudgeInput> seeds) {
  LaneJudgement out;
  out.seeds = static_cast<int64_t>(seeds.size());
  std::vector<Course> courses;
  for (const JudgeInput& seed : seeds) {
    const Course course = courses.emplace_back(measure(seed));
    if (!course.broke) continue;
    if (out.broke_in++ == 0) out.first_broken = static_cast<int64_t>(courses.size()) - 1;
  }
  const Paired gaps = gaps_of(seeds, courses), drops = drops_of(seeds, courses);
  std::vector<double> tails;
  for (const Course& course : courses) {
    if (course.broke && courses.size() > 1) continue;
    tails.push_back(course.tail_loss);
    const bool is_first = tails.size() == 1;
    out.tail_steps = is_first ? course.tail_steps : std::min(out.tail_steps, course.tail_steps);
  }
  out.tail_loss = tails.empty() ? std::numeric_limits<double>::quiet_NaN() : mean_of(tails);
  out.gap = gaps.values.empty() ? std::numeric_limits<double>::quiet_NaN() : gaps.mean();
  if (!gaps.values.empty()) {
    out.batch_noise = gaps.noise();
    out.seed_bound = gaps.seed_bound();
    out.chaos = gaps.chaos_mean();
    out.chaos_bound = gaps.chaos_limit();
  } else {
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    out.batch_noise = out.seed_bound = out.chaos = out.chaos_bound = kUnknown;
  }
  const bool has_answers = !drops.values.empty();
  if (has_answers) {
    out.answers = seeds.front().held_out.answers;
    out.correct_drop = drops.mean();
    out.correct_noise = drops.noise();
    out.correct_chaos = largest(drops.chaos) / drops.root();
    out.correct_chaos_bound = drops.chaos_limit();
    out.correct_seed_bound = drops.seed_bound();
  }
  const double chaos = chaos_of(gaps.chaos);
  for (size_t i = 0; i < seeds.size(); ++i) {
    const Course& course = courses[i];
    const bool stalled = !course.broke && !course.learned && learned(seeds[i].reference) &&
                         course.gap > std::max(course.batch_noise, chaos);
    if (stalled) ++out.stalled_in;
  }
  if (out.broke_in > 0) {
    out.verdict = Verdict::kBroke;
  } else if (!seeds.front().keeps_own_weights) {
    out.verdict = Verdict::kUnjudged;
  } else if (!reference_learned(seeds) || took_no_step(seeds)) {
    out.verdict = Verdict::kTooShort;
  } else if (beyond_chance(out.stalled_in, out.seeds)) {
    out.verdict = Verdict::kStalled;
  } else if (gaps.is_worse() || (has_answers && drops.is_worse())) {
    out.verdict = Verdict::kWorse;
  } else {
    const bool loss_beyond = gaps.is_beyond();
    const bool answers_beyond =
        has_answers && drops.is_beyond() && out.correct_drop > out.correct_chaos;
    out.verdict = loss_beyond || answers_beyond ? Verdict::kUnclear : Verdict::kFine;
    if (loss_beyond) out.seeds_to_decide = gaps.seeds_to_decide();
    if (answers_beyond && !loss_beyond) out.seeds_to_decide = drops.seeds_to_decide();
  }
  return out;
}

LaneJudgement judge(const JudgeInput& input) {
  return judge_seeds({&input, 1});
}

}  // namespace lockstep
