// See rank_gradients.h.
#include "analysis/parts/rank_gradients.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <vector>

#include "src/core/error.h"

namespace lockstep {
namespace {

using Group = std::vector<const CapturedPart*>;

// The sum over the ranks, in FP32 and in their order, each divided first, as collectives do.
std::vector<float> reduced(const Group& group, const std::string& name, double divisor) {
  std::vector<float> total;
  for (const CapturedPart* part : group) {
    const auto found = part->gradients.find(name);
    if (found == part->gradients.end()) return {};
    const std::span<const float> own = found->second.as<float>();
    if (total.empty()) total.resize(own.size());
    if (total.size() != own.size()) {
      throw InputError(fmt::format("'{}' has {} numbers on rank {}, {} on rank {}", name,
                                   own.size(), part->rank, total.size(), group.front()->rank),
                       "keep the parts of one run together");
    }
    for (size_t i = 0; i < own.size(); ++i) total[i] += own[i] / static_cast<float>(divisor);
  }
  return total;
}

// The distance of the run's block from that block of `whole`, relative to the run's norm.
double distance_in_block(const std::vector<float>& whole, const Shape& shape,
                         const CapturedRunGradient& run) {
  const std::span<const float> theirs = run.values.as<float>();
  const Shape& block = run.values.shape();
  double off = 0, norm = 0;
  for (size_t i = 0; i < theirs.size(); ++i) {
    // The place of element i of the block in the whole, row-major.
    size_t rest = i, place = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      const auto extent = static_cast<size_t>(block[d]);
      const size_t offset = run.offset.empty() ? 0 : static_cast<size_t>(run.offset[d]);
      place += (rest % extent + offset) * stride;
      rest /= extent;
      stride *= static_cast<size_t>(shape[d]);
    }
    const double mine = whole[place], other = theirs[i];
    if (mine == other || (std::isnan(mine) && std::isnan(other))) {
      if (std::isfinite(other)) norm += other * other;
      continue;
    }
    off += (mine - other) * (mine - other);
    norm += other * other;
  }
  if (off == 0) return 0;
  return norm > 0 ? std::sqrt(off / norm) : INFINITY;
}

RankGradients compare(const Group& group, double divisor) {
  RankGradients found;
  found.ranks = static_cast<int64_t>(group.size());
  std::map<std::string, std::vector<float>> whole;
  for (const CapturedPart* part : group) {
    for (const auto& [name, run] : part->run_gradients) {
      const auto own = part->gradients.find(name);
      if (own == part->gradients.end()) continue;
      auto [entry, is_new] = whole.try_emplace(name);
      if (is_new) entry->second = reduced(group, name, divisor);
      if (entry->second.empty()) continue;
      ++found.tensors;
      const double off = distance_in_block(entry->second, own->second.shape(), run);
      if (found.where.empty() || !(off <= found.off)) {
        found.off = off;
        found.where = fmt::format("{} on rank {}", name, part->rank);
      }
    }
  }
  return found;
}

}  // namespace

RankGradients compare_rank_gradients(std::span<const CapturedPart> parts) {
  std::map<std::string, Group> groups;
  for (const CapturedPart& part : parts) groups[part.own_columns].push_back(&part);
  RankGradients worst;
  for (const auto& [columns, group] : groups) {
    RankGradients mean = compare(group, static_cast<double>(group.size()));
    if (mean.off > kReductionRounding) {
      RankGradients sum = compare(group, 1);
      sum.is_sum = true;
      if (sum.off < mean.off) mean = std::move(sum);
    }
    mean.tensors += worst.tensors;
    mean.ranks += worst.ranks;
    if (worst.where.empty() || mean.off > worst.off) {
      worst = std::move(mean);
    } else {
      worst.tensors = mean.tensors;
      worst.ranks = mean.ranks;
    }
  }
  return worst;
}

}  // namespace lockstep
