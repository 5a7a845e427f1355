// Hashes only decide what is kept; what is kept is compared.
#include "emulation/kernels/cuda/factor_store.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep::cuda {
namespace {

bool same_bytes(const std::vector<std::byte>& x, const std::vector<std::byte>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size()) == 0;
}

}  // namespace

FactorStore::Stored FactorStore::put(const FactorKey& key, const std::vector<std::byte>& codes) {
  ++reads_;
  if (!keeps(key, codes)) return pass(key, codes);
  Entry& entry = kept_.try_emplace(key, device_).first->second;
  entry.last_read = reads_;
  if (same_bytes(entry.codes, codes)) return {entry.memory.reserve(codes.size()), true};
  bytes_ += codes.size() - entry.codes.size();
  entry.codes.clear();  // so that they are not taken for the device's if copying fails
  void* memory = entry.memory.reserve(codes.size());
  device_.upload(memory, codes.data(), codes.size());
  entry.codes = codes;
  return {memory, false};
}

FactorStore::Stored FactorStore::pass(const FactorKey& key, const std::vector<std::byte>& codes) {
  void* memory = passing_[key.operand].reserve(codes.size());
  device_.upload(memory, codes.data(), codes.size());
  return {memory, false};
}

// Whether the array is kept from now on.
bool FactorStore::keeps(const FactorKey& key, const std::vector<std::byte>& codes) {
  constexpr size_t kMostSeen = 1 << 16;
  if (kept_.contains(key)) return true;
  if (seen_.size() > kMostSeen) seen_.clear();
  const uint64_t hash = XXH3_64bits(codes.data(), codes.size());
  const auto [known, is_new] = seen_.try_emplace(key, hash);
  if (is_new || known->second != hash || !has_room_for(codes.size())) {
    known->second = hash;
    return false;
  }
  seen_.erase(known);
  return true;
}

// If there is none, what was not read for long is dropped.
bool FactorStore::has_room_for(size_t bytes) {
  if (bytes_ + bytes <= most_bytes_) return true;
  for (auto row = kept_.begin(); row != kept_.end();) {
    Entry& entry = row->second;
    if (reads_ - entry.last_read <= idle_reads_) {
      ++row;
      continue;
    }
    bytes_ -= entry.codes.size();
    dropped_allocations_ += entry.memory.allocations();
    row = kept_.erase(row);
  }
  return bytes_ + bytes <= most_bytes_;
}

int64_t FactorStore::allocations() const {
  int64_t all = dropped_allocations_ + passing_[0].allocations() + passing_[1].allocations();
  for (const auto& [key, entry] : kept_) all += entry.memory.allocations();
  return all;
}

}  // namespace lockstep::cuda
