#include "src/record/hdf5/hdf5_handle.h"

#include <algorithm>
#include <utility>

namespace lockstep::hdf5 {
namespace {

// HDF5's own words ("unable to open object", "wrong version number") do not help a user.
std::string describe(const std::string& what) {
  return "cannot " + what;
}

Handle creation(hid_t property_class) {
  Handle list(H5Pcreate(property_class), "make a property list");
  check(H5Pset_obj_track_times(list.id(), false), "switch off time stamps");
  return list;
}

// Text at a fixed length with a terminating zero, so that an empty text has a type too.
Handle text_type(size_t length) {
  Handle type(H5Tcopy(H5T_C_S1), "make a text type");
  check(H5Tset_size(type.id(), length + 1), "size a text type");
  check(H5Tset_cset(type.id(), H5T_CSET_UTF8), "make a text type UTF-8");
  return type;
}

Handle scalar_space() {
  return Handle(H5Screate(H5S_SCALAR), "make a scalar");
}

void write_any_attribute(hid_t object, const std::string& name, hid_t type, const void* data) {
  const std::string what = "write attribute " + name;
  Handle attribute;
  if (has_attribute(object, name)) {
    attribute = Handle(H5Aopen(object, name.c_str(), H5P_DEFAULT), what);
    const Handle stored(H5Aget_type(attribute.id()), what);
    if (H5Tget_class(type) == H5T_STRING && H5Tequal(stored.id(), type) <= 0) {
      attribute.close();  // another length: a new attribute
      check(H5Adelete(object, name.c_str()), what);
    }
  }
  if (!attribute) {
    const Handle space = scalar_space();
    attribute =
        Handle(H5Acreate2(object, name.c_str(), type, space.id(), H5P_DEFAULT, H5P_DEFAULT), what);
  }
  check(H5Awrite(attribute.id(), type, data), what);
}

void read_any_attribute(hid_t object, const std::string& name, hid_t type, void* data) {
  const std::string what = "read attribute " + name;
  const Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), what);
  check(H5Aread(attribute.id(), type, data), what);
}

}  // namespace

Handle::Handle(hid_t id, const std::string& what) : id_(id) {
  if (id < 0) throw Error(describe(what));
}
Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    close();
    id_ = std::exchange(other.id_, -1);
  }
  return *this;
}
void Handle::close() {
  if (id_ >= 0) H5Idec_ref(id_);
  id_ = -1;
}

void check(herr_t status, const std::string& what) {
  if (status < 0) throw Error(describe(what));
}

void be_quiet() {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Handle create_group(hid_t parent, const std::string& name) {
  const Handle properties = creation(H5P_GROUP_CREATE);
  return Handle(H5Gcreate2(parent, name.c_str(), H5P_DEFAULT, properties.id(), H5P_DEFAULT),
                "create group " + name);
}
Handle create_growing_group(hid_t parent, const std::string& name, int64_t most_links,
                            size_t name_bytes) {
  // Estimates that make the header larger than the driver's alignment: it begins on a page.
  constexpr int64_t kLeastLinks = 80, kMostLinks = 1000;
  constexpr size_t kLeastName = 8;
  const auto links = static_cast<unsigned>(std::clamp(most_links, kLeastLinks, kMostLinks));
  const Handle properties = creation(H5P_GROUP_CREATE);
  check(H5Pset_link_creation_order(properties.id(), H5P_CRT_ORDER_TRACKED), "choose its kind");
  check(H5Pset_link_phase_change(properties.id(), kMostLinks, 0), "keep links in the header");
  check(H5Pset_est_link_info(properties.id(), links,
                             static_cast<unsigned>(std::max(name_bytes, kLeastName))),
        "choose its size");
  return Handle(H5Gcreate2(parent, name.c_str(), H5P_DEFAULT, properties.id(), H5P_DEFAULT),
                "create group " + name);
}
Handle open_group(hid_t parent, const std::string& name) {
  return Handle(H5Gopen2(parent, name.c_str(), H5P_DEFAULT), "open group " + name);
}
bool has_link(hid_t parent, const std::string& name) {
  return H5Lexists(parent, name.c_str(), H5P_DEFAULT) > 0;
}
std::vector<std::string> link_names(hid_t group) {
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->push_back(name);
    return 0;
  };
  check(H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &names), "list a group");
  return names;
}

void write_attribute(hid_t object, const std::string& name, const std::string& text) {
  const Handle type = text_type(text.size());
  write_any_attribute(object, name, type.id(), text.c_str());
}
void write_attribute(hid_t object, const std::string& name, int64_t value) {
  write_any_attribute(object, name, H5T_NATIVE_INT64, &value);
}
void write_attribute(hid_t object, const std::string& name, double value) {
  write_any_attribute(object, name, H5T_NATIVE_DOUBLE, &value);
}
bool has_attribute(hid_t object, const std::string& name) {
  return H5Aexists(object, name.c_str()) > 0;
}
std::string text_attribute(hid_t object, const std::string& name) {
  const std::string what = "read attribute " + name;
  const Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), what);
  const Handle type(H5Aget_type(attribute.id()), what);
  if (H5Tget_class(type.id()) != H5T_STRING || H5Tis_variable_str(type.id()) > 0) {
    throw Error("cannot " + what + ": not a text of fixed length");
  }
  std::string text(H5Tget_size(type.id()), '\0');
  check(H5Aread(attribute.id(), type.id(), text.data()), what);
  return text.substr(0, text.find('\0'));
}
int64_t int_attribute(hid_t object, const std::string& name) {
  int64_t value = 0;
  read_any_attribute(object, name, H5T_NATIVE_INT64, &value);
  return value;
}
void write_array(hid_t parent, const std::string& name, hid_t type,
                 const std::vector<int64_t>& shape, const void* data) {
  const std::string what = "write dataset " + name;
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Handle space =
      shape.empty()
          ? scalar_space()
          : Handle(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                   what);
  const Handle properties = creation(H5P_DATASET_CREATE);
  const Handle dataset(
      H5Dcreate2(parent, name.c_str(), type, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT),
      what);
  if (data != nullptr) {
    check(H5Dwrite(dataset.id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), what);
  }
}

std::vector<int64_t> array_shape(hid_t dataset) {
  const Handle space(H5Dget_space(dataset), "read a shape");
  const int rank = H5Sget_simple_extent_ndims(space.id());
  std::vector<hsize_t> extents(static_cast<size_t>(std::max(rank, 0)));
  check(H5Sget_simple_extent_dims(space.id(), extents.data(), nullptr), "read a shape");
  return {extents.begin(), extents.end()};
}

void read_array(hid_t parent, const std::string& name, hid_t type, void* data) {
  const std::string what = "read dataset " + name;
  const Handle dataset(H5Dopen2(parent, name.c_str(), H5P_DEFAULT), what);
  if (data == nullptr) return;  // no element
  check(H5Dread(dataset.id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), what);
}

void write_text(hid_t parent, const std::string& name, const std::string& text) {
  const Handle type = text_type(text.size());
  write_array(parent, name, type.id(), {}, text.c_str());
}

std::string read_text(hid_t parent, const std::string& name) {
  const Handle dataset(H5Dopen2(parent, name.c_str(), H5P_DEFAULT), "open dataset " + name);
  const Handle type(H5Dget_type(dataset.id()), "read dataset " + name);
  std::string text(H5Tget_size(type.id()), '\0');
  read_array(parent, name, type.id(), text.data());
  return text.substr(0, text.find('\0'));
}

void write_texts(hid_t parent, const std::string& name, const std::vector<std::string>& texts) {
  size_t longest = 0;
  for (const std::string& text : texts) longest = std::max(longest, text.size());
  const Handle type = text_type(longest);
  std::string table(texts.size() * (longest + 1), '\0');
  for (size_t i = 0; i < texts.size(); ++i) texts[i].copy(&table[i * (longest + 1)], longest);
  write_array(parent, name, type.id(), {static_cast<int64_t>(texts.size())},
              texts.empty() ? nullptr : table.data());
}

std::vector<std::string> read_texts(hid_t parent, const std::string& name) {
  const Handle dataset(H5Dopen2(parent, name.c_str(), H5P_DEFAULT), "open dataset " + name);
  const Handle type(H5Dget_type(dataset.id()), "read dataset " + name);
  const std::vector<int64_t> shape = array_shape(dataset.id());
  const size_t width = H5Tget_size(type.id());
  const size_t count = shape.size() == 1 ? static_cast<size_t>(shape[0]) : 0;
  std::string table(count * width, '\0');
  read_array(parent, name, type.id(), count == 0 ? nullptr : table.data());
  std::vector<std::string> texts;
  for (size_t i = 0; i < count; ++i) {
    const std::string cell = table.substr(i * width, width);
    texts.push_back(cell.substr(0, cell.find('\0')));
  }
  return texts;
}

}  // namespace lockstep::hdf5
