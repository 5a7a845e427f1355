// Makes blocks. Out of line, because GCC 12 warns about a variant's other members when it inlines
// these.
#include "reports/block.h"

#include <utility>

namespace lockstep {

Block paragraph(std::string text) {
  return Paragraph{std::move(text)};
}

Block paragraph(std::string text, Tone tone, size_t toned) {
  return Paragraph{std::move(text), tone, toned};
}

Block verbatim(std::string text) {
  return Verbatim{std::move(text)};
}

}  // namespace lockstep
