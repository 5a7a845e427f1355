#include "src/record/hdf5/tree_dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/hdf5/link_name.h"
#include "src/record/hdf5/stored_tree.h"

namespace lockstep {
namespace {

using Kind = StoredValue::Kind;

hid_t memory_type(Kind kind) {
  switch (kind) {
    case Kind::kU8:
      return H5T_NATIVE_UINT8;
    case Kind::kI32:
      return H5T_NATIVE_INT32;
    case Kind::kU32:
      return H5T_NATIVE_UINT32;
    case Kind::kI64:
      return H5T_NATIVE_INT64;
    case Kind::kU64:
      return H5T_NATIVE_UINT64;
    case Kind::kF32:
      return H5T_NATIVE_FLOAT;
    case Kind::kF64:
      return H5T_NATIVE_DOUBLE;
    case Kind::kBf16:  // as it is stored: see kind_of
    case Kind::kText:
      break;
  }
  return -1;
}

class Dump {
 public:
  Dump(const DumpRequest& request, const SandboxWrite& write)
      : request_(request), left_(request.most_bytes), write_(write) {}

  void dump_children(hid_t group, const std::string& path, int depth) {
    require(depth < kStoredDepth, path,
            fmt::format("groups are nested deeper than {}", kStoredDepth));
    for (const std::string& link : names_in(group, path)) {
      const std::string at = path + "/" + link;
      const Wanted wanted = request_.wanted(at);
      if (wanted == Wanted::kNothing) continue;
      require(++objects_ <= kStoredObjects, at,
              fmt::format("the file has more than {} objects", kStoredObjects));
      check_name(link, at);
      require(hdf5::escape_link(hdf5::unescape_link(link)) == link, at,
              "its name must have % as %25 and / as %2F");
      H5L_info_t info;
      hdf5::check(H5Lget_info(group, link.c_str(), &info, H5P_DEFAULT), "look at " + at);
      require(info.type == H5L_TYPE_HARD, at, "is not a hard link");
      const hdf5::Handle object(H5Oopen(group, link.c_str(), H5P_DEFAULT), "open " + at);
      dump_object(object.id(), at, hdf5::unescape_link(link), depth, wanted);
    }
  }

  void dump_attributes(hid_t object, const std::string& path) {
    hsize_t at = 0;
    std::vector<std::string> names;
    const auto collect = [](hid_t, const char* name, const H5A_info_t*, void* out) -> herr_t {
      static_cast<std::vector<std::string>*>(out)->push_back(name);
      return 0;
    };
    hdf5::check(H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, &at, collect, &names),
                "list the attributes of " + (path.empty() ? "/" : path));
    for (const std::string& name : names) {
      const std::string what = path + "@" + name;
      require(++objects_ <= kStoredObjects, what,
              fmt::format("the file has more than {} objects", kStoredObjects));
      check_name(name, what);
      const hdf5::Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), "open " + what);
      const hdf5::Handle type(H5Aget_type(attribute.id()), "read " + what);
      const hdf5::Handle space(H5Aget_space(attribute.id()), "read " + what);
      const auto read = [&](hid_t memory, void* out) {
        hdf5::check(H5Aread(attribute.id(), memory, out), "read " + what);
      };
      write_(stored_frame::attribute(name, value(type.id(), space.id(), what, read)));
    }
  }

 private:
  static void require(bool ok, const std::string& path, const std::string& problem) {
    if (!ok) throw hdf5::Error(path + ": " + problem);
  }

  static std::vector<std::string> names_in(hid_t group, const std::string& path) {
    try {
      return hdf5::link_names(group);
    } catch (const hdf5::Error& error) {
      throw hdf5::Error((path.empty() ? "/" : path) + ": " + error.what());
    }
  }

  static void check_name(const std::string& name, const std::string& at) {
    require(
        name.size() <= kStoredNameBytes, at,
        fmt::format("its name has {} bytes, at most {} allowed", name.size(), kStoredNameBytes));
    require(printable(name) == name, at, "its name must be UTF-8 without control characters");
  }

  void dump_object(hid_t object, const std::string& path, const std::string& name, int depth,
                   Wanted wanted) {
    H5O_info_t info;
    hdf5::check(H5Oget_info2(object, &info, H5O_INFO_BASIC), "look at " + path);
    require(seen_.insert(info.addr).second, path, "is in the file twice");
    if (info.type == H5O_TYPE_GROUP) {
      write_(stored_frame::group(name));
      dump_attributes(object, path);
      dump_children(object, path, depth + 1);
    } else {
      require(info.type == H5O_TYPE_DATASET, path, "is neither a group nor a dataset");
      write_(stored_frame::dataset(name, dataset(object, path, wanted)));
      dump_attributes(object, path);
    }
    write_(stored_frame::close());
  }

  StoredValue dataset(hid_t dataset, const std::string& path, Wanted wanted) {
    const hdf5::Handle properties(H5Dget_create_plist(dataset), "read " + path);
    require(H5Pget_external_count(properties.id()) == 0, path, "keeps its data in another file");
    require(H5Pget_layout(properties.id()) != H5D_VIRTUAL, path, "is a view of other datasets");
    const hdf5::Handle type(H5Dget_type(dataset), "read " + path);
    const hdf5::Handle space(H5Dget_space(dataset), "read " + path);
    if (wanted == Wanted::kExtent) {
      StoredValue extent;
      extent.kind = kind_of(type.id(), path);
      extent.shape = shape_of(space.id(), path, kMostElements);
      extent.is_extent = true;
      return extent;
    }
    return value(type.id(), space.id(), path, [&](hid_t memory, void* out) {
      hdf5::check(H5Dread(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, out), "read " + path);
    });
  }

  template <typename Read>
  StoredValue value(hid_t type, hid_t space, const std::string& path, Read read) {
    StoredValue v;
    v.kind = kind_of(type, path);
    v.shape = shape_of(space, path, left_);
    const auto count = static_cast<uint64_t>(v.size());
    if (v.kind == Kind::kText) {
      dump_texts(type, space, count, path, read, v.texts);
      return v;
    }
    spend(count * bytes_of(v.kind), path);
    v.bytes.resize(count * bytes_of(v.kind));
    if (count > 0) read(v.kind == Kind::kBf16 ? type : memory_type(v.kind), v.bytes.data());
    return v;
  }

  Shape shape_of(hid_t space, const std::string& path, uint64_t most) {
    require(H5Sget_simple_extent_type(space) != H5S_NULL, path, "has no value");
    const int rank = H5Sget_simple_extent_ndims(space);
    require(rank >= 0 && rank <= static_cast<int>(kStoredRank), path,
            fmt::format("has {} dimensions, at most {} allowed", rank, kStoredRank));
    std::vector<hsize_t> extents(static_cast<size_t>(rank));
    hdf5::check(H5Sget_simple_extent_dims(space, extents.data(), nullptr), "read " + path);
    uint64_t count = 1;
    for (const hsize_t extent : extents) {
      require(extent == 0 || count <= most / extent, path, too_large());
      count *= extent;
    }
    return {extents.begin(), extents.end()};
  }

  // In this machine's order. HDF5 would widen it, a hundred times as slowly as a shift does.
  static bool is_bf16(hid_t type) {
    constexpr size_t kSign = 15, kFractionBits = 7, kExponentBits = 8, kBias = 127;
    size_t sign = 0, exponent = 0, exponent_bits = 0, fraction = 0, fraction_bits = 0;
    return H5Tget_size(type) == sizeof(uint16_t) && H5Tget_order(type) == H5T_ORDER_LE &&
           H5Tget_fields(type, &sign, &exponent, &exponent_bits, &fraction, &fraction_bits) >= 0 &&
           sign == kSign && exponent == kFractionBits && exponent_bits == kExponentBits &&
           fraction == 0 && fraction_bits == kFractionBits && H5Tget_ebias(type) == kBias &&
           H5Tget_norm(type) == H5T_NORM_IMPLIED;
  }

  static Kind kind_of(hid_t type, const std::string& path) {
    constexpr size_t kWide = 8, kSingle = 4;
    const size_t size = H5Tget_size(type);
    switch (H5Tget_class(type)) {
      case H5T_STRING:
        return Kind::kText;
      case H5T_ENUM:  // h5py's bool
        return Kind::kI64;
      case H5T_FLOAT:
        require(size <= kWide, path, "is wider than float64");
        if (is_bf16(type)) return Kind::kBf16;
        return size <= kSingle ? Kind::kF32 : Kind::kF64;
      case H5T_INTEGER:
        require(size <= kWide, path, "is wider than int64");
        if (H5Tget_sign(type) == H5T_SGN_2) return size == kSingle ? Kind::kI32 : Kind::kI64;
        if (size == 1) return Kind::kU8;
        return size == kWide ? Kind::kU64 : size == kSingle ? Kind::kU32 : Kind::kI64;
      default:
        throw hdf5::Error(path + ": is neither numbers nor text");
    }
  }

  template <typename Read>
  void dump_texts(hid_t type, hid_t space, uint64_t count, const std::string& path, Read read,
                  std::vector<std::string>& out) {
    if (count == 0) return;
    if (H5Tis_variable_str(type) > 0) {
      spend(count * sizeof(char*), path);
      std::vector<char*> pointers(count, nullptr);
      const hdf5::Handle memory(H5Tcopy(H5T_C_S1), "read " + path);
      hdf5::check(H5Tset_size(memory.id(), H5T_VARIABLE), "read " + path);
      hdf5::check(H5Tset_cset(memory.id(), H5Tget_cset(type)), "read " + path);
      read(memory.id(), pointers.data());
      for (const char* text : pointers) {
        out.emplace_back(text == nullptr ? "" : text);
        spend(out.back().size(), path);
      }
      H5Dvlen_reclaim(memory.id(), space, H5P_DEFAULT, pointers.data());
      return check_texts(out, path);
    }
    const size_t width = H5Tget_size(type);
    require(width == 0 || count <= left_ / width, path, too_large());
    spend(count * width, path);
    std::string cells(count * width, '\0');
    read(type, cells.data());
    for (uint64_t i = 0; i < count; ++i) {
      const std::string cell = cells.substr(i * width, width);
      out.push_back(cell.substr(0, cell.find('\0')));
    }
    check_texts(out, path);
  }

  void check_texts(const std::vector<std::string>& texts, const std::string& path) const {
    for (const std::string& text : texts) {
      constexpr size_t kShown = 40;
      require(is_stored_text(text, request_.texts), path,
              "holds '" + printable(text, kShown) + "', must be UTF-8" +
                  (request_.texts == TextRule::kAny ? "" : " without control characters"));
    }
  }

  void spend(uint64_t bytes, const std::string& path) {
    require(bytes <= left_, path, too_large());
    left_ -= bytes;
  }
  std::string too_large() const {
    return fmt::format(
        "brings the file above {} bytes of uncompressed data, the limit for a file of its size",
        request_.most_bytes);
  }

  static constexpr uint64_t kMostElements = uint64_t{1} << 60;
  const DumpRequest& request_;
  uint64_t left_;  // of most_bytes
  const SandboxWrite& write_;
  int64_t objects_ = 0;
  std::set<haddr_t> seen_;  // objects
};

}  // namespace

void dump_tree(hid_t file, const DumpRequest& request, const SandboxWrite& write) {
  try {
    const hdf5::Handle properties(H5Fget_create_plist(file), "open it");
    hsize_t found = 0;
    hdf5::check(H5Pget_userblock(properties.id(), &found), "read the size of its block");
    if (found != request.block) {
      throw hdf5::Error(
          fmt::format("its HDF5 data begin at byte {}, must begin at {}", found, request.block));
    }
    const hdf5::Handle root = hdf5::open_group(file, "/");
    Dump dump(request, write);
    dump.dump_attributes(root.id(), "");
    dump.dump_children(root.id(), "", 0);
    write(stored_frame::finish());
  } catch (const hdf5::Error& error) {
    write(stored_frame::problem(error.what()));
  }
}

StoredNode own_tree(hid_t file, const DumpRequest& request) {
  std::string frames;
  dump_tree(file, request, [&](std::string_view bytes) { frames += bytes; });
  size_t taken = 0;
  const auto read = [&](char* into, size_t count) {
    const size_t given = frames.copy(into, count, taken);
    taken += given;
    return given;
  };
  try {
    return parse_stored_frames(read, std::numeric_limits<uint64_t>::max(), request.texts);
  } catch (const InputError& error) {
    throw hdf5::Error(error.what());
  }
}

}  // namespace lockstep
