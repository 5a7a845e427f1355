// See hdf5_places.h.
#include "tests/fuzz/hdf5_places.h"

#include <fmt/format.h>
#include <hdf5.h>

#include <map>
#include <set>

#include "src/record/hdf5/hdf5_handle.h"

namespace lockstep::fuzz {
namespace {

using hdf5::Handle;

constexpr size_t kMostParts = 12;  // of one kind in one object: chunks, nodes
constexpr size_t kMostRows = 40;   // of a column of texts
constexpr unsigned kLayoutMessage = 8, kContinuationMessage = 16, kSymbolsMessage = 17;

class Finder {
 public:
  Finder(const std::string& bytes, uint64_t base) : bytes_(bytes), base_(base) {}

  FileParts found;

  void add(const std::string& object, const std::string& kind, uint64_t address, uint64_t size) {
    if (base_ + address + size > bytes_.size() || size == 0) return;
    size_t& number = numbers_[object + " " + kind];
    if (number >= kMostParts) return;
    found.parts.push_back(
        {fmt::format("{} {} {}", object, kind, number++), kind, base_ + address, size});
  }
  uint64_t number(uint64_t address, size_t width) const {
    uint64_t value = 0;
    for (size_t i = 0; i < width && base_ + address + i < bytes_.size(); ++i) {
      value |= uint64_t{static_cast<unsigned char>(bytes_[base_ + address + i])} << (8 * i);
    }
    return value;
  }
  bool has(uint64_t address, std::string_view signature) const {
    return base_ + address + signature.size() <= bytes_.size() &&
           std::string_view(bytes_).substr(base_ + address, signature.size()) == signature;
  }

  void find_header(const std::string& object, uint64_t address) {
    if (has(address, "OHDR")) {  // version 2
      add(object, "header", address, 64);
      return;
    }
    add(object, "header", address, 16);
    find_messages(object, address + 16, number(address + 8, 4));
  }

 private:
  void find_messages(const std::string& object, uint64_t at, uint64_t size) {
    for (const uint64_t end = at + size; at + 8 <= end;) {
      const auto type = static_cast<unsigned>(number(at, 2));
      const uint64_t length = number(at + 2, 2), data = at + 8;
      add(object, fmt::format("head {}", type), at, 8);
      add(object, fmt::format("message {}", type), data, length);
      if (type == kContinuationMessage) find_messages(object, number(data, 8), number(data + 8, 8));
      if (type == kSymbolsMessage) {
        find_group_node(object, number(data, 8));
        find_heap(object, number(data + 8, 8));
      }
      if (type == kLayoutMessage) find_layout(object, data);
      at = data + length;
    }
  }
  void find_group_node(const std::string& object, uint64_t address) {
    if (!has(address, "TREE")) return;
    const uint64_t level = number(address + 5, 1), entries = number(address + 6, 2);
    add(object, "btree", address, 24 + 16 * entries + 8);
    for (uint64_t i = 0; i < entries; ++i) {
      const uint64_t child = number(address + 24 + 16 * i + 8, 8);
      if (level > 0) {
        find_group_node(object, child);
      } else if (has(child, "SNOD")) {
        add(object, "symbols", child, 8 + 40 * number(child + 6, 2));
      }
    }
  }
  void find_heap(const std::string& object, uint64_t address) {
    if (!has(address, "HEAP")) return;
    add(object, "heap", address, 32);
    add(object, "names", number(address + 24, 8), number(address + 8, 8));
  }
  // Version 3: class 0 compact, 1 contiguous, 2 chunked.
  void find_layout(const std::string& object, uint64_t at) {
    if (number(at, 1) != 3) return;
    const uint64_t kind = number(at + 1, 1);
    if (kind == 1) add(object, "data", number(at + 2, 8), number(at + 10, 8));
    if (kind == 2) find_chunk_node(object, number(at + 3, 8), number(at + 2, 1));
  }
  void find_chunk_node(const std::string& object, uint64_t address, uint64_t extents) {
    if (!has(address, "TREE")) return;
    const uint64_t level = number(address + 5, 1), entries = number(address + 6, 2);
    const uint64_t key = 8 + 8 * extents;
    add(object, "btree", address, 24 + entries * (key + 8) + key);
    for (uint64_t i = 0; i < entries; ++i) {
      const uint64_t at = address + 24 + i * (key + 8), child = number(at + key, 8);
      if (level > 0) {
        find_chunk_node(object, child, extents);
      } else {
        add(object, "data", child, number(at, 4));
      }
    }
  }

  const std::string& bytes_;
  uint64_t base_;
  std::map<std::string, size_t> numbers_;
};

bool is_text(hid_t type) {
  constexpr size_t kMostBytes = 1 << 20;
  return H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 &&
         H5Tget_size(type) <= kMostBytes;
}

void find_attribute_texts(hid_t object, const std::string& name, FileParts& found) {
  H5O_info_t info;
  if (H5Oget_info2(object, &info, H5O_INFO_NUM_ATTRS) < 0) return;
  for (hsize_t i = 0; i < info.num_attrs; ++i) {
    const Handle attribute(
        H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, i, H5P_DEFAULT, H5P_DEFAULT),
        "open an attribute");
    char text[256] = {};
    H5Aget_name(attribute.id(), sizeof text - 1, text);
    const std::string place = name + "@" + text;
    found.attributes.push_back(place);
    if (is_text(Handle(H5Aget_type(attribute.id()), "read a type").id())) {
      found.texts.push_back({place, hdf5::text_attribute(object, text)});
    }
  }
}

void find_dataset_texts(hid_t file, hid_t dataset, const std::string& name, FileParts& found) {
  if (!is_text(Handle(H5Dget_type(dataset), "read a type").id())) return;
  const size_t rank = hdf5::array_shape(dataset).size();
  if (rank == 0) found.texts.push_back({name, hdf5::read_text(file, name)});
  if (rank != 1) return;
  const std::vector<std::string> rows = hdf5::read_texts(file, name);
  for (size_t i = 0; i < rows.size() && i < kMostRows; ++i) {
    found.texts.push_back({fmt::format("{}#{}", name, i), rows[i]});
  }
}

}  // namespace

const FilePart* FileParts::find(std::string_view name) const {
  for (const FilePart& part : parts) {
    if (part.name == name) return &part;
  }
  return nullptr;
}

FileParts find_parts(const std::string& path, const std::string& bytes) {
  hdf5::be_quiet();
  const Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "open " + path);
  const Handle made(H5Fget_create_plist(file.id()), "read properties");
  hsize_t base = 0;
  H5Pget_userblock(made.id(), &base);
  Finder finder(bytes, base);
  finder.add("file", "superblock", 0, 96);
  if (base > 0) finder.found.parts.push_back({"file block 0", "block", 0, 64});
  struct Visit {
    Finder& finder;
    hid_t file;
  } visit{finder, file.id()};
  H5Ovisit2(
      file.id(), H5_INDEX_NAME, H5_ITER_INC,
      [](hid_t, const char* name, const H5O_info_t* info, void* data) -> herr_t {
        auto& [finder, file] = *static_cast<Visit*>(data);
        try {  // no exception may cross HDF5's frames
          const std::string object = name == std::string(".") ? "/" : "/" + std::string(name);
          finder.found.objects.push_back(object);
          finder.find_header(object, info->addr);
          const Handle handle(H5Oopen(file, object.c_str(), H5P_DEFAULT), "open " + object);
          find_attribute_texts(handle.id(), object, finder.found);
          if (info->type == H5O_TYPE_DATASET) {
            find_dataset_texts(file, handle.id(), object, finder.found);
          }
        } catch (const std::exception&) {  // its texts are left out
        }
        return 0;
      },
      &visit, H5O_INFO_BASIC);
  return std::move(finder.found);
}

}  // namespace lockstep::fuzz
