// See golden_file.h.
#include "tests/reports/golden_file.h"

#include <cstdlib>

#include "src/core/text_file.h"
#include "tests/support/folders.h"

namespace lockstep::testing {

std::string golden_text(const std::string& name, const std::string& text) {
  const std::string path = std::string(kSourceFolder) + "/tests/golden/" + name;
  if (std::getenv("LOCKSTEP_REWRITE_GOLDEN") != nullptr) write_text_file_atomically(path, text);
  return read_text_file(path);
}

}  // namespace lockstep::testing
