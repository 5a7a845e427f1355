// Labelled 8-bit images in memory. One data set for every source: files and the synthetic generator
// only fill its contents. Knows nothing of where the images came from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/data/dataset.h"

namespace lockstep {

struct ImageSetContents {
  std::string name;   // "mnist"
  Shape image_shape;  // (C,H,W)
  int64_t class_count = 10;
  std::vector<uint8_t> pixels;  // (examples,C,H,W), train first
  std::vector<uint8_t> labels;  // (examples), each below class_count
  int64_t train_count = 0;
  // Per channel; a pixel x becomes (x / 255 - mean) / std, in float as torchvision's transforms do.
  // Constants of the source: an example must not depend on how many were asked for.
  std::vector<float> mean, std;
};

// Requires: sizes that agree and labels in range (std::logic_error otherwise: sources check first).
std::unique_ptr<DataSet> make_image_set(ImageSetContents contents);

// The number of training examples when `count` examples are split 80/20 in order.
constexpr int64_t split_train_count(int64_t count) {
  return count * 4 / 5;
}

}  // namespace lockstep
