// A data set is a fixed list of examples split into train and held-out. The examples of a step's
// batch are a pure function of (seed, step), so a resumed run sees the batches that it would have
// seen without the stop.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/tensor.h"
#include "src/graph/batch.h"

namespace lockstep {

// What a model learns from the data. It decides which tensors a batch holds.
//   kImages        images (B,C,H,W), labels (B)
//   kSegmentation  images, labels (B,H,W)
//   kDetection     images, labels (B A), boxes (B A,4), box_mask (B A,4); A anchors: anchors.h
//   kNextToken     tokens (B,T), labels (B T): each character's successor
//   kMaskedToken   tokens (B,T), some replaced; labels (B T): the character there, or kNoLabel
enum class Task : uint8_t { kImages, kSegmentation, kDetection, kNextToken, kMaskedToken };
std::string_view to_string(Task task);     // "next token"
inline constexpr int32_t kNoLabel = -100;  // torch's default ignore_index

struct DataRequest {
  Task task = Task::kImages;
  int64_t context = 0;  // characters per example, for text
  uint64_t seed = 1;    // of synthetic data
  // Only shapes and classes are needed, no examples: data that are drawn have as few as possible.
  bool is_for_shapes = false;
};

class DataSet {
 public:
  virtual ~DataSet() = default;
  virtual std::string describe() const = 0;  // "mnist: 8000 train, 2000 held-out, 1x28x28"
  virtual int64_t train_count() const = 0;
  virtual int64_t held_out_count() const = 0;
  virtual Shape image_shape() const = 0;    // (C,H,W); empty for text
  virtual int64_t class_count() const = 0;  // for text, the size of the vocabulary
  // Examples by index: 0..train_count-1 train, then the held-out ones. Whatever is drawn anew at
  // each use of an example (which characters are masked) also depends on `draw`.
  virtual Batch gather(std::span<const int64_t> indices, uint64_t draw = 0) const = 0;
};

// The indices of the training batch of `step`: epochs are permutations keyed by (seed, epoch), cut
// into full batches. An epoch leaves out its last, incomplete one: graphs have static shapes.
// Requires: batch_size <= train_count (InputError).
std::vector<int64_t> batch_indices(const DataSet& data, int64_t step, int64_t batch_size,
                                   uint64_t seed);

}  // namespace lockstep
