// A thin layer over HDF5's C functions: handles that close themselves, failures as exceptions, and
// the few kinds of attributes and datasets in Lockstep's files. Knows nothing of runs.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace lockstep::hdf5 {

// A call that HDF5 refused; callers turn it into InputError (reading) or WriteError (writing).
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Owns one HDF5 identifier of any kind.
class Handle {
 public:
  Handle() = default;
  // Throws: Error "cannot `what`" if `id` is negative.
  Handle(hid_t id, const std::string& what);
  Handle(Handle&& other) noexcept : id_(other.id_) { other.id_ = -1; }
  Handle& operator=(Handle&& other) noexcept;
  ~Handle() { close(); }
  void close();
  hid_t id() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_ = -1;
};

// Throws: Error "cannot `what`" if `status` is negative.
void check(herr_t status, const std::string& what);

// Switches off HDF5's own printing of its error stack.
void be_quiet();

// The memory type of T; files hold the same type.
template <typename T>
hid_t type_of() {
  if constexpr (std::is_same_v<T, double>) return H5T_NATIVE_DOUBLE;
  if constexpr (std::is_same_v<T, float>) return H5T_NATIVE_FLOAT;
  if constexpr (std::is_same_v<T, uint64_t>) return H5T_NATIVE_UINT64;
  if constexpr (std::is_same_v<T, int64_t>) return H5T_NATIVE_INT64;
  if constexpr (std::is_same_v<T, uint32_t>) return H5T_NATIVE_UINT32;
  if constexpr (std::is_same_v<T, int32_t>) return H5T_NATIVE_INT32;
  if constexpr (std::is_same_v<T, uint8_t>) return H5T_NATIVE_UINT8;
}

// Groups and datasets are made without time stamps: equal runs give equal bytes.
Handle create_group(hid_t parent, const std::string& name);
// A group to which links are added one commit at a time (commit_driver.h). Its object header has
// room for `most_links` of at most `name_bytes`, so that a link is added by one write within a
// page, for 80 short names and fewer. The usual kind of group changes a heap, a tree and a table
// instead: a kill in between was seen to make the file unreadable.
Handle create_growing_group(hid_t parent, const std::string& name, int64_t most_links,
                            size_t name_bytes);
Handle open_group(hid_t parent, const std::string& name);
bool has_link(hid_t parent, const std::string& name);
std::vector<std::string> link_names(hid_t group);  // sorted

// Attributes: overwritten in place when they exist. Text is stored at a fixed length in UTF-8.
void write_attribute(hid_t object, const std::string& name, const std::string& text);
void write_attribute(hid_t object, const std::string& name, int64_t value);
void write_attribute(hid_t object, const std::string& name, double value);
bool has_attribute(hid_t object, const std::string& name);
std::string text_attribute(hid_t object, const std::string& name);
int64_t int_attribute(hid_t object, const std::string& name);

// Datasets written once: one text, a column of texts, a column of numbers, an array of any shape.
void write_text(hid_t parent, const std::string& name, const std::string& text);
std::string read_text(hid_t parent, const std::string& name);
void write_texts(hid_t parent, const std::string& name, const std::vector<std::string>& texts);
std::vector<std::string> read_texts(hid_t parent, const std::string& name);
void write_array(hid_t parent, const std::string& name, hid_t type,
                 const std::vector<int64_t>& shape, const void* data);
std::vector<int64_t> array_shape(hid_t dataset);
void read_array(hid_t parent, const std::string& name, hid_t type, void* data);

template <typename T>
void write_column(hid_t parent, const std::string& name, const std::vector<T>& values) {
  write_array(parent, name, type_of<T>(), {static_cast<int64_t>(values.size())}, values.data());
}

}  // namespace lockstep::hdf5
