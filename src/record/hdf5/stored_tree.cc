#include "src/record/hdf5/stored_tree.h"

#include <cstring>
#include <stdexcept>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/utf8.h"

namespace lockstep {
namespace {

using Kind = StoredValue::Kind;

enum Tag : char {
  kGroup = 'G',
  kDataset = 'D',
  kAttribute = 'A',
  kClose = 'E',
  kFinish = 'Z',
  kProblem = 'X',
};

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<uint32_t>(text.size()));
  out += text;
}
void put_value(std::string& out, const StoredValue& value) {
  put(out, static_cast<uint8_t>(value.kind));
  put(out, static_cast<uint8_t>(value.is_extent));
  put(out, static_cast<uint8_t>(value.shape.size()));
  for (const int64_t extent : value.shape) put(out, extent);
  if (value.is_extent) return;
  if (value.kind == Kind::kText) {
    for (const std::string& text : value.texts) put_text(out, text);
  } else {
    out += value.bytes;
  }
}

std::string tagged(Tag tag, std::string_view name) {
  std::string out(1, tag);
  put_text(out, name);
  return out;
}

class Parser {
 public:
  Parser(const std::function<size_t(char*, size_t)>& read, uint64_t most_bytes, TextRule texts)
      : read_(read), left_(most_bytes), texts_(texts) {}

  StoredNode parse() {
    StoredNode root;
    std::vector<StoredNode*> open = {&root};
    int64_t objects = 0;
    for (;;) {
      const char tag = take<char>();
      switch (tag) {
        case kGroup:
        case kDataset: {
          const std::string its_name = name();
          require(open.back()->data == std::nullopt && ++objects <= kStoredObjects &&
                  open.size() <= static_cast<size_t>(kStoredDepth));
          const auto [added, is_new] = open.back()->children.emplace(its_name, StoredNode());
          require(is_new);
          if (tag == kDataset) added->second.data = value();
          open.push_back(&added->second);
          break;
        }
        case kAttribute: {
          const std::string its_name = name();
          require(open.back()->attributes.emplace(its_name, value()).second);
          break;
        }
        case kClose:
          require(open.size() > 1);
          open.pop_back();
          break;
        case kFinish:
          require(open.size() == 1);
          return root;
        case kProblem:
          throw InputError(text_bytes(kMostProblemBytes));
        default:
          require(false);
      }
    }
  }

 private:
  static void require(bool ok) {
    if (!ok) throw std::runtime_error("the records are damaged");
  }
  void take_into(char* into, uint64_t count) {
    require(count <= left_ && read_(into, count) == count);
    left_ -= count;
  }
  std::string take_bytes(uint64_t count) {
    require(count <= left_);  // before memory is allocated
    std::string bytes(count, '\0');
    take_into(bytes.data(), count);
    return bytes;
  }
  template <typename T>
  T take() {
    char bytes[sizeof(T)];
    take_into(bytes, sizeof bytes);
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  std::string text_bytes(uint64_t most) {
    const auto length = take<uint32_t>();
    require(length <= most);
    return take_bytes(length);
  }
  std::string name() {
    std::string found = text_bytes(kStoredNameBytes);
    require(printable(found) == found);
    return found;
  }
  std::string text() {
    std::string found = text_bytes(left_);
    require(is_stored_text(found, texts_));
    return found;
  }
  StoredValue value() {
    StoredValue v;
    const auto kind = take<uint8_t>();
    require(kind <= static_cast<uint8_t>(Kind::kBf16));
    v.kind = static_cast<Kind>(kind);
    const auto is_extent = take<uint8_t>();
    require(is_extent <= 1);
    v.is_extent = is_extent == 1;
    const auto rank = take<uint8_t>();
    require(rank <= kStoredRank);
    // An element takes at least a byte, so a valid count does not exceed the bytes left.
    const uint64_t most = v.is_extent ? kMostElements : left_;
    uint64_t count = 1;
    for (uint8_t i = 0; i < rank; ++i) {
      const auto extent = take<int64_t>();
      require(extent >= 0 && (extent == 0 || count <= most / static_cast<uint64_t>(extent)));
      count *= static_cast<uint64_t>(extent);
      v.shape.push_back(extent);
    }
    if (v.is_extent) return v;
    if (v.kind == Kind::kText) {
      for (uint64_t i = 0; i < count; ++i) v.texts.push_back(text());
    } else {
      v.bytes = take_bytes(count * bytes_of(v.kind));
    }
    return v;
  }

  static constexpr uint64_t kMostProblemBytes = 1 << 20;
  static constexpr uint64_t kMostElements = uint64_t{1} << 60;  // times 8 bytes fits 64 bits
  const std::function<size_t(char*, size_t)>& read_;
  uint64_t left_;
  TextRule texts_;
};

}  // namespace

size_t bytes_of(StoredValue::Kind kind) {
  switch (kind) {
    case Kind::kU8:
      return 1;
    case Kind::kBf16:
      return 2;
    case Kind::kI32:
    case Kind::kU32:
    case Kind::kF32:
      return 4;
    case Kind::kI64:
    case Kind::kU64:
    case Kind::kF64:
      return 8;
    case Kind::kText:
      return 0;
  }
  throw std::logic_error("bytes_of: unknown kind");
}

bool is_stored_text(std::string_view text, TextRule rule) {
  return rule == TextRule::kAny ? is_utf8(text) : printable(text) == text;
}

StoredNode* StoredNode::find(std::string_view name) {
  const auto found = children.find(std::string(name));
  return found == children.end() ? nullptr : &found->second;
}

namespace stored_frame {

std::string group(std::string_view name) {
  return tagged(kGroup, name);
}
std::string dataset(std::string_view name, const StoredValue& value) {
  std::string out = tagged(kDataset, name);
  put_value(out, value);
  return out;
}
std::string attribute(std::string_view name, const StoredValue& value) {
  std::string out = tagged(kAttribute, name);
  put_value(out, value);
  return out;
}
std::string close() {
  return {kClose};
}
std::string finish() {
  return {kFinish};
}
std::string problem(std::string_view text) {
  return tagged(kProblem, text);
}

}  // namespace stored_frame

StoredNode parse_stored_frames(const std::function<size_t(char* into, size_t count)>& read,
                               uint64_t most_bytes, TextRule texts) {
  return Parser(read, most_bytes, texts).parse();
}

}  // namespace lockstep
