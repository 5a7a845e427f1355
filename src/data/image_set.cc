// The in-memory image data set: a table of 256 normalised values per channel, and look-ups.
#include "src/data/image_set.h"

#include <array>
#include <stdexcept>

#include "src/core/chunks.h"

namespace lockstep {
namespace {

using PixelTable = std::array<float, 256>;

PixelTable normalised(float mean, float std) {
  PixelTable table;
  for (size_t x = 0; x < table.size(); ++x) {
    table[x] = (static_cast<float>(x) / 255.0f - mean) / std;
  }
  return table;
}

class ImageSet : public DataSet {
 public:
  explicit ImageSet(ImageSetContents contents) : contents_(std::move(contents)) {
    const ImageSetContents& c = contents_;
    const size_t examples = c.labels.size();
    const size_t channels = static_cast<size_t>(c.image_shape.at(0));
    if (c.pixels.size() != examples * static_cast<size_t>(element_count(c.image_shape)) ||
        c.mean.size() != channels || c.std.size() != channels || c.train_count < 0 ||
        c.train_count > static_cast<int64_t>(examples)) {
      throw std::logic_error("image set " + c.name + ": contents do not fit together");
    }
    for (const uint8_t label : c.labels) {
      if (label >= c.class_count) throw std::logic_error("image set " + c.name + ": bad label");
    }
    for (size_t i = 0; i < channels; ++i) tables_.push_back(normalised(c.mean[i], c.std[i]));
  }

  std::string describe() const override {
    const Shape& s = contents_.image_shape;
    return contents_.name + ": " + std::to_string(train_count()) + " train, " +
           std::to_string(held_out_count()) + " held-out, " + std::to_string(s[0]) + "x" +
           std::to_string(s[1]) + "x" + std::to_string(s[2]);
  }
  int64_t train_count() const override { return contents_.train_count; }
  int64_t held_out_count() const override {
    return static_cast<int64_t>(contents_.labels.size()) - contents_.train_count;
  }
  Shape image_shape() const override { return contents_.image_shape; }
  int64_t class_count() const override { return contents_.class_count; }

  Batch gather(std::span<const int64_t> indices, uint64_t) const override {
    const Shape& s = contents_.image_shape;
    const int64_t batch = static_cast<int64_t>(indices.size());
    Tensor images({batch, s[0], s[1], s[2]}, Container::kF32);
    Tensor labels({batch}, Container::kI32);
    const int64_t plane = s[1] * s[2], size = element_count(s);
    parallel_chunks(batch, row_grain(size), [&](int64_t begin, int64_t end) {
      float* out = images.as<float>().data() + begin * size;
      for (int64_t n = begin; n < end; ++n) {
        const int64_t index = checked(indices[static_cast<size_t>(n)]);
        const uint8_t* pixel = contents_.pixels.data() + index * size;
        for (const PixelTable& table : tables_) {
          for (int64_t i = 0; i < plane; ++i) *out++ = table[*pixel++];
        }
        labels.as<int32_t>()[static_cast<size_t>(n)] = contents_.labels[static_cast<size_t>(index)];
      }
    });
    Batch result;
    result.emplace("images", std::move(images));
    result.emplace("labels", std::move(labels));
    return result;
  }

 private:
  int64_t checked(int64_t index) const {
    if (index < 0 || index >= static_cast<int64_t>(contents_.labels.size())) {
      throw std::out_of_range(contents_.name + ": example " + std::to_string(index) + " of " +
                              std::to_string(contents_.labels.size()));
    }
    return index;
  }

  ImageSetContents contents_;
  std::vector<PixelTable> tables_;  // per channel
};

}  // namespace

std::unique_ptr<DataSet> make_image_set(ImageSetContents contents) {
  return std::make_unique<ImageSet>(std::move(contents));
}

}  // namespace lockstep
