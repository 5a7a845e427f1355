// Memory for repeated use, without the cost of clearing it or of new pages.
#pragma once

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace lockstep {

inline constexpr int64_t kCacheLineBytes = 64;

// Grow-only scratch memory, 64-byte aligned, not cleared.
template <typename T>
class Workspace {
 public:
  std::span<T> get(size_t count) {
    if (count > capacity_) {
      constexpr size_t kCacheLine = kCacheLineBytes, kHugePage = size_t{2} << 20;
      const size_t wanted = count * sizeof(T), align = wanted < kHugePage ? kCacheLine : kHugePage;
      const size_t bytes = (wanted + align - 1) / align * align;
      data_.reset(static_cast<T*>(std::aligned_alloc(align, bytes)));
      capacity_ = data_ != nullptr ? count : 0;
      if (data_ == nullptr) throw std::bad_alloc();
#ifdef __linux__
      // Huge pages refused: small pages are slower but correct.
      if (align == kHugePage) madvise(data_.get(), bytes, MADV_HUGEPAGE);
#endif
    }
    return {data_.get(), count};
  }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  size_t capacity_ = 0;
};

}  // namespace lockstep
