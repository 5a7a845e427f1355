// See hdf5_edits.h.
#include "tests/fuzz/hdf5_edits.h"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/hdf5/file_block.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/run/run_file_names.h"
#include "src/record/run/run_reader.h"
#include "tests/fuzz/escaped.h"
#include "tests/fuzz/hdf5_places.h"
#include "tests/fuzz/mutate.h"
#include "tests/record/capture/capture_file.h"
#include "tests/record/capture/seed_graphs.h"

namespace lockstep::fuzz {
namespace {

using hdf5::Handle;
using testing::Dice;

struct ParsedFile {
  std::string bytes;
  FileParts parts;
};
const ParsedFile& parsed(const std::string& path) {
  static std::map<std::string, ParsedFile> files;
  const auto found = files.find(path);
  if (found != files.end()) return found->second;
  ParsedFile& file = files[path];
  file.bytes = read_text_file(path);
  file.parts = find_parts(path, file.bytes);
  return file;
}

uint64_t whole(std::string_view text) {
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}
// The text before the first space, which is removed with the space.
std::string_view next_word(std::string_view& line, char end = ' ') {
  const size_t at = std::min(line.find(end), line.size());
  const std::string_view word = line.substr(0, at);
  line.remove_prefix(std::min(at + 1, line.size()));
  return word;
}

// --- through HDF5, on a file that is still valid ---

void set_text(hid_t file, std::string_view place, const std::string& text) {
  const size_t at = place.find('@'), row = place.find('#');
  if (at != std::string_view::npos) {
    const Handle object(H5Oopen(file, std::string(place.substr(0, at)).c_str(), H5P_DEFAULT),
                        "open");
    const std::string name(place.substr(at + 1));
    H5Adelete(object.id(), name.c_str());
    hdf5::write_attribute(object.id(), name, text);
    return;
  }
  const std::string path(place.substr(0, row));
  if (row == std::string_view::npos) {
    H5Ldelete(file, path.c_str(), H5P_DEFAULT);
    hdf5::write_text(file, path, text);
    return;
  }
  std::vector<std::string> rows = hdf5::read_texts(file, path);
  const uint64_t number = whole(place.substr(row + 1));
  if (number >= rows.size()) return;
  rows[number] = text;
  H5Ldelete(file, path.c_str(), H5P_DEFAULT);
  hdf5::write_texts(file, path, rows);
}

void drop(hid_t file, std::string_view place) {
  const size_t at = place.find('@');
  const std::string path(place.substr(0, at));
  if (at == std::string_view::npos) {
    H5Ldelete(file, path.c_str(), H5P_DEFAULT);
  } else {
    H5Adelete_by_name(file, path.c_str(), std::string(place.substr(at + 1)).c_str(), H5P_DEFAULT);
  }
}

// Returns: whether the line was one of these.
bool edit_tree(std::string_view line, const std::string& path) {
  const std::string_view word = next_word(line);
  if (word != "text" && word != "drop" && word != "move" && word != "hdf5") return false;
  try {
    if (word == "hdf5") {
      Dice dice(whole(line));
      testing::damage_hdf5(path, dice);
      return true;
    }
    const Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
    const std::string_view place = next_word(line, '=');
    if (word == "text") set_text(file.id(), place, unescaped(line));
    if (word == "drop") drop(file.id(), place);
    if (word == "move") {
      const std::string from(place), to(line);
      H5Ldelete(file.id(), to.c_str(), H5P_DEFAULT);
      H5Lmove(file.id(), from.c_str(), file.id(), to.c_str(), H5P_DEFAULT, H5P_DEFAULT);
    }
  } catch (const hdf5::Error&) {  // no such place
  }
  return true;
}

// --- on its bytes ---

void edit_bytes(std::string_view line, const FileParts& parts, std::string& bytes) {
  const std::string_view word = next_word(line);
  if (word == "cut") {
    bytes.resize(bytes.size() * std::min<uint64_t>(whole(line), 65535) / 65536);
  } else if (word == "zero") {
    const uint64_t share = std::min<uint64_t>(whole(next_word(line)), 65535);
    const size_t at = bytes.size() * share / 65536;
    const size_t length = std::min<size_t>(whole(line), bytes.size() - at);
    std::fill_n(bytes.begin() + static_cast<int64_t>(at), length, '\0');
  } else if (word == "put" || word == "xor") {
    const uint64_t offset = whole(next_word(line));
    const std::string other = bytes_of(next_word(line));
    const FilePart* part = parts.find(line);
    if (part == nullptr) return;
    for (size_t i = 0; i < other.size() && offset + i < part->size; ++i) {
      const uint64_t at = part->begin + offset + i;
      if (at >= bytes.size()) return;
      bytes[at] = static_cast<char>(word == "put" ? other[i] : bytes[at] ^ other[i]);
    }
  }
}

// --- new lines ---

std::string some_number(Dice& dice, size_t width) {
  constexpr uint64_t kEdges[] = {0,
                                 1,
                                 2,
                                 3,
                                 0x7f,
                                 0x80,
                                 0xff,
                                 0x100,
                                 0x7fff,
                                 0xffff,
                                 0x10000,
                                 1 << 20,
                                 0x7fffffff,
                                 0x80000000,
                                 0xffffffff,
                                 uint64_t{1} << 32,
                                 uint64_t{1} << 40,
                                 uint64_t{1} << 62,
                                 INT64_MAX,
                                 uint64_t{1} << 63,
                                 UINT64_MAX,
                                 UINT64_MAX - 1,
                                 0x7ff0000000000000,   // infinity
                                 0x7ff8000000000000,   // NaN
                                 0x7fefffffffffffff,   // the largest double
                                 0xc3e0000000000000};  // -2^63
  const uint64_t value = kEdges[dice.below(std::size(kEdges))];
  std::string bytes;
  for (size_t i = 0; i < width; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

Grammar grammar_of(std::string_view text) {
  if (text.starts_with('{') || text.starts_with('[')) return Grammar::kJson;
  return text.find(" = ") != std::string_view::npos ? Grammar::kToml : Grammar::kWords;
}

std::string new_line(const FileParts& parts, bool is_capture, Dice& dice) {
  if (is_capture && dice.one_in(3)) {
    const std::vector<std::string> kDamage = {"tree", "graph", "hdf5"};
    return fmt::format("{} {}", dice.pick(kDamage), dice.below(UINT32_MAX));
  }
  const uint64_t what = dice.below(20);
  if (what == 0) return fmt::format("cut {}", dice.below(65536));
  if (what == 1) return fmt::format("zero {} {}", dice.below(65536), 1 + dice.below(4096));
  if (what <= 7 && !parts.texts.empty()) {
    const FileText& text = dice.pick(parts.texts);
    const std::vector<std::string> all = {text.text};
    return fmt::format("text {}={}", text.place,
                       escaped(mutate(text.text, grammar_of(text.text), all, dice)));
  }
  if (what == 8) {
    return "drop " + dice.pick(dice.one_in(2) ? parts.objects : parts.attributes);
  }
  if (what == 9) return "move " + dice.pick(parts.objects) + "=" + dice.pick(parts.objects);
  // A kind first: there are far more messages than B-trees.
  std::vector<std::string> kinds;
  for (const FilePart& part : parts.parts) {
    if (std::ranges::count(kinds, part.kind) == 0) kinds.push_back(part.kind);
  }
  const std::string& kind = dice.one_in(3) ? "data" : dice.pick(kinds);
  std::vector<const FilePart*> among;
  for (const FilePart& part : parts.parts) {
    if (part.kind == kind) among.push_back(&part);
  }
  if (among.empty()) return "raw";
  const FilePart& part = *dice.pick(among);
  const size_t width = size_t{1} << dice.below(4);
  uint64_t offset = dice.below(part.size);
  if (!dice.one_in(4)) offset -= offset % width;
  const bool flips = dice.one_in(3);
  const std::string bytes =
      flips ? std::string(1, static_cast<char>(1 << dice.below(8))) : some_number(dice, width);
  return fmt::format("{} {} {} {}", flips ? "xor" : "put", offset, hex_of(bytes), part.name);
}

}  // namespace

std::string change_edits(const std::string& edits, const std::vector<std::string>& others,
                         Dice& dice) {
  std::vector<std::string> lines = split(edits, '\n');
  std::erase(lines, "");
  if (lines.empty() || !lines[0].starts_with("file ")) return dice.pick(others);
  const std::string name = lines[0].substr(5);
  const std::string path = seed_file(name);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return dice.pick(others);
  constexpr size_t kMostLines = 12;
  if (lines.size() > 1 && (lines.size() > kMostLines || dice.one_in(4))) {
    lines.erase(lines.begin() + 1 + static_cast<int64_t>(dice.below(lines.size() - 1)));
  } else {
    lines.push_back(new_line(parsed(path).parts, name.starts_with("capture"), dice));
  }
  return join(lines, "\n") + "\n";
}

namespace {

// As of an earlier version, which had none: otherwise every edit stops there. The names keep their
// place among those of their group.
void hide_checksums(std::string& bytes) {
  const auto rename = [&](std::string_view name, std::string_view hidden) {
    for (size_t at = 0; (at = bytes.find(name, at)) != std::string::npos; at += name.size()) {
      bytes.replace(at, name.size(), hidden);
    }
  };
  rename("description_checksum", "description_checksun");
  rename("checksums", "checksumt");
  if (bytes.find(run_names::kRunFormat) == bytes.npos) return;
  const auto number = [](int64_t version) {
    return std::string(reinterpret_cast<const char*>(&version), sizeof version);
  };
  constexpr size_t kNear = 64;  // the attribute's value follows its name
  const std::string_view name = run_names::kFormatVersion;
  for (size_t at = 0; (at = bytes.find(name, at)) != std::string::npos; at += name.size()) {
    const size_t value = bytes.find(number(kRunFormatVersion), at);
    if (value == bytes.npos || value > at + kNear) continue;
    bytes.replace(value, sizeof(int64_t), number(run_names::kSealedVersion - 1));
  }
}

// The size that a checkpoint's block says it has, in bytes 20 to 23.
uint64_t block_size_of(const std::string& bytes) {
  constexpr size_t kAt = 20;
  uint32_t size = 0;
  if (bytes.size() >= kAt + sizeof size) std::memcpy(&size, &bytes[kAt], sizeof size);
  return std::min<uint64_t>(size, bytes.size());
}

void write_edited_or_throw(const std::string& edits, const std::string& path) {
  std::vector<std::string> lines = split(edits, '\n');
  std::string name = lines[0].starts_with("file ") ? lines[0].substr(5) : "";
  std::error_code error;
  if (name.empty() || name.find('/') != std::string::npos ||
      !std::filesystem::is_regular_file(seed_file(name), error)) {
    throw InputError("edits: no such seed file");
  }
  const bool is_capture = name.starts_with("capture");
  const ParsedFile& seed = parsed(seed_file(name));
  std::string bytes = seed.bytes;
  const auto starts = [&](const std::string& line, std::initializer_list<const char*> words) {
    return std::ranges::any_of(words, [&](const char* word) { return line.starts_with(word); });
  };
  const bool is_rebuilt = is_capture && std::ranges::any_of(lines, [&](const std::string& line) {
                            return starts(line, {"tree ", "graph "});
                          });
  const auto changes_tree = [&](const std::string& line) {
    return starts(line, {"text ", "drop ", "move ", "hdf5 "});
  };
  std::optional<FileParts> moved;
  if (is_rebuilt || std::ranges::any_of(lines, changes_tree)) {
    if (is_rebuilt) {
      static const std::vector<Graph> graphs = testing::seed_graphs();
      StoredNode tree = testing::capture_of(graphs[whole(name.substr(8)) % graphs.size()]);
      for (std::string_view line : lines) {
        const std::string_view word = next_word(line);
        Dice dice(whole(line));
        if (word == "tree") testing::damage_tree(tree, dice);
        if (word == "graph") testing::damage_graph(tree, dice);
      }
      testing::write_tree(path, tree, false);
    } else {
      std::ofstream(path, std::ios::binary) << bytes;
    }
    for (const std::string& line : lines) edit_tree(line, path);
    bytes = read_text_file(path);
    try {
      moved = find_parts(path, bytes);
    } catch (const hdf5::Error&) {
      moved.emplace();
    }
  }
  for (const std::string& line : lines) edit_bytes(line, moved ? *moved : seed.parts, bytes);
  const bool is_raw = std::ranges::count(lines, "raw") > 0;
  if (!is_raw && !is_capture) hide_checksums(bytes);
  std::ofstream(path, std::ios::binary) << bytes;
  if (is_raw) return;
  if (is_capture && bytes.size() > testing::kBlockBytes) testing::seal_capture(path);
  if (has_block(path, kCheckpointBlock)) {
    write_file_block(path, kCheckpointBlock, block_size_of(bytes));
  }
}

}  // namespace

// Damage upon damage may not be possible: the input is then none.
void write_edited(const std::string& edits, const std::string& path) {
  try {
    write_edited_or_throw(edits, path);
  } catch (const InputError&) {
    throw;
  } catch (const std::exception&) {
    throw InputError("edits: they cannot all be made");
  }
}

}  // namespace lockstep::fuzz
