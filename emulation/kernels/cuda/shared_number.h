// Numbers in a device's memory that all calls of a kernel change at once. Results do not depend on
// the order: integers are added, and of doubles the largest or the smallest stays.
#pragma once

#include <bit>
#include <cstdint>
#ifndef __CUDA_ARCH__
#include <atomic>
#endif

#include "src/core/host_device.h"

namespace lockstep::cuda {

// Modulo 2^64.
LOCKSTEP_HOST_DEVICE inline void add_to_shared(uint64_t& number, uint64_t amount) {
#ifdef __CUDA_ARCH__
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(&number), amount);
#else
  std::atomic_ref(number).fetch_add(amount, std::memory_order_relaxed);
#endif
}

// Numbers >= 0, infinity included: the order of their bits is theirs.
LOCKSTEP_HOST_DEVICE inline void raise_shared(double& number, double x) {
#ifdef __CUDA_ARCH__
  atomicMax(reinterpret_cast<unsigned long long*>(&number), std::bit_cast<unsigned long long>(x));
#else
  const std::atomic_ref shared(number);
  double seen = shared.load(std::memory_order_relaxed);
  while (seen < x && !shared.compare_exchange_weak(seen, x, std::memory_order_relaxed)) continue;
#endif
}
LOCKSTEP_HOST_DEVICE inline void lower_shared(double& number, double x) {
#ifdef __CUDA_ARCH__
  atomicMin(reinterpret_cast<unsigned long long*>(&number), std::bit_cast<unsigned long long>(x));
#else
  const std::atomic_ref shared(number);
  double seen = shared.load(std::memory_order_relaxed);
  while (seen > x && !shared.compare_exchange_weak(seen, x, std::memory_order_relaxed)) continue;
#endif
}

}  // namespace lockstep::cuda
