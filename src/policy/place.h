// A part of a model that a rule names by its order and not by its modules' names.
//   "first block"   "last block"   "first 2 blocks"   "last 2 blocks"   "last 15% of blocks"
//   "head"   "first layer"
// src/lower/model_places.h finds it in a graph and says what a block and the head are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

enum class PlacePart : uint8_t { kBlocks, kHead, kFirstLayer };

struct Place {
  PlacePart part = PlacePart::kBlocks;
  bool from_end = false;  // kBlocks: counted from the last one
  int64_t count = 0;      // kBlocks: how many; 0: the percentage decides
  double percent = 0;     // kBlocks: in (0, 100]

  // How many of `all` blocks: a share is rounded up.
  int64_t blocks_of(int64_t all) const;
};

// Throws: InputError that shows the forms.
Place find_place(const std::string& text);
std::string to_string(const Place& place);

}  // namespace lockstep
