#include "src/record/run/run_checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <string>

#include "src/core/text_hash.h"
#include "src/record/run/run_file_names.h"

namespace lockstep {
namespace {

uint64_t hash_of(const void* bytes, size_t count, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, count, seed);
}

// Of rows that grow, type and width.
uint64_t value_checksum(std::string_view path, const StoredValue& value) {
  uint64_t hash = fnv1a(path, static_cast<uint64_t>(value.kind));
  const std::span<const int64_t> shape(value.shape);
  const auto known = value.is_extent && !shape.empty() ? shape.subspan(1) : shape;
  hash = hash_of(known.data(), known.size_bytes(), hash);
  for (const std::string& text : value.texts) hash = hash_of(text.data(), text.size(), hash);
  return hash_of(value.bytes.data(), value.bytes.size(), hash);
}

bool changes(std::string_view attribute) {
  constexpr std::string_view kChanging[] = {run_names::kStepsComplete, run_names::kStepsChecksum,
                                            run_names::kDiedAt, run_names::kDiedOf,
                                            run_names::kDescriptionChecksum};
  return std::ranges::find(kChanging, attribute) != std::end(kChanging);
}

uint64_t node_checksum(const StoredNode& node, const std::string& path, bool has_layout) {
  const bool is_left_out = node.data && node.data->is_extent && !has_layout;
  uint64_t sum = is_left_out ? 0 : node.data ? value_checksum(path, *node.data) : fnv1a(path);
  for (const auto& [name, value] : node.attributes) {
    if (!changes(name)) sum ^= value_checksum(path + "@" + name, value);
  }
  for (const auto& [name, child] : node.children) {
    if (path.empty() && name == run_names::kSeeds) continue;  // runs with checksums of their own
    sum ^= node_checksum(child, path + "/" + name, has_layout);
  }
  return sum;
}

// The bytes copied to a device depend on where arrays are in memory.
bool differs_between_equal_runs(const Quantity& quantity) {
  const Source sources[] = {&LaneStep::seconds, &DeviceWork::bytes_up, &DeviceWork::bytes_kept};
  return std::ranges::count(sources, quantity.source) > 0;
}

}  // namespace

uint64_t row_checksum(std::string_view name, int64_t row, const void* bytes, size_t count) {
  return hash_of(bytes, count, fnv1a(name, static_cast<uint64_t>(row)));
}

uint64_t death_checksum(int64_t step, bool has_died, DeathCause died_of) {
  const int64_t cause = has_died ? 1 + static_cast<int64_t>(died_of) : 0;
  return row_checksum(run_names::kDiedAt, step, &cause, sizeof cause);
}

std::string steps_checksum(int64_t steps, bool is_closed) {
  const char closed = 1;
  return run_names::hex(row_checksum(run_names::kStepsComplete, steps, &closed, is_closed ? 1 : 0));
}

size_t first_part(Gathered checksums) {
  return checksums == Gathered::kStepChecksums ? 1 : 0;
}

std::optional<Gathered> checksums_of(const Quantity& quantity) {
  if (quantity.is_checksum()) return std::nullopt;
  if (differs_between_equal_runs(quantity)) return Gathered::kSecondsChecksums;
  switch (quantity.rows()) {
    case Rows::kStep:
      break;
    case Rows::kEvaluation:
      return Gathered::kEvaluationChecksums;
    case Rows::kSample:
      return Gathered::kSampleChecksums;
    case Rows::kHistogram:
      return Gathered::kHistogramChecksums;
    case Rows::kBlock:
      return Gathered::kBlockChecksums;
    case Rows::kProduct:
      return Gathered::kProductChecksums;
  }
  return Gathered::kStepChecksums;
}

uint64_t description_checksum(const StoredNode& run) {
  int64_t version = 0;
  const auto stored = run.attributes.find(run_names::kFormatVersion);
  if (stored != run.attributes.end() && stored->second.bytes.size() == sizeof version) {
    std::memcpy(&version, stored->second.bytes.data(), sizeof version);
  }
  return node_checksum(run, "", version >= run_names::kSealedVersion);
}

}  // namespace lockstep
