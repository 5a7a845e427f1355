// Damage that cannot be written as a tree of groups and datasets.
#include <hdf5.h>

#include <functional>

#include "src/record/hdf5/hdf5_handle.h"
#include "tests/record/capture/damage.h"

namespace lockstep::testing {
namespace {

using hdf5::check;
using hdf5::Handle;

Handle space_with(const std::vector<hsize_t>& extents) {
  return {H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
          "make a space"};
}

// A dataset of this type and extents, without data; `layout` may be 0.
void create(hid_t at, const char* name, hid_t type, const std::vector<hsize_t>& extents,
            hid_t layout = H5P_DEFAULT) {
  const Handle space = space_with(extents);
  Handle(H5Dcreate2(at, name, type, space.id(), H5P_DEFAULT, layout, H5P_DEFAULT), "create");
}

Handle layout() {
  return {H5Pcreate(H5P_DATASET_CREATE), "make a layout"};
}

void make_links(hid_t group, H5L_type_t) {
  for (int i = 0; i < 300; ++i) {
    check(H5Lcreate_soft("/params", group, ("more" + std::to_string(i)).c_str(), H5P_DEFAULT,
                         H5P_DEFAULT),
          "link");
  }
}

// 64 MiB of zeros in one compressed chunk of some kilobytes.
void make_bomb(hid_t at, hsize_t chunk, bool shuffled) {
  const Handle properties = layout();
  check(H5Pset_chunk(properties.id(), 1, &chunk), "set a chunk");
  if (shuffled) check(H5Pset_shuffle(properties.id()), "set a filter");
  check(H5Pset_deflate(properties.id(), 9), "set a filter");
  const hsize_t now = 4, most = H5S_UNLIMITED;
  const Handle space(H5Screate_simple(1, &now, &most), "make a space");
  const Handle set(
      H5Dcreate2(at, "bomb", H5T_STD_I8LE, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT),
      "create");
  const int8_t zeros[4] = {};
  check(H5Dwrite(set.id(), H5T_STD_I8LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros), "write");
}

void make_dataset(hid_t at, hid_t type) {
  create(at, "odd", type, {3});
}

struct Damage {
  const char* what;
  std::function<void(hid_t file, hid_t group)> make;
};

const std::vector<Damage>& damages() {
  constexpr hsize_t kHuge = hsize_t{1} << 40;
  static const std::vector<Damage> all = {
      {"a soft link",
       [](hid_t, hid_t g) {
         check(H5Lcreate_soft("/amp", g, "soft", H5P_DEFAULT, H5P_DEFAULT), "link");
       }},
      {"a dangling link",
       [](hid_t, hid_t g) {
         check(H5Lcreate_soft("/nothing", g, "soft", H5P_DEFAULT, H5P_DEFAULT), "link");
       }},
      {"a link into itself",
       [](hid_t, hid_t g) {
         check(H5Lcreate_soft("self", g, "self", H5P_DEFAULT, H5P_DEFAULT), "link");
       }},
      {"an external link",
       [](hid_t, hid_t g) {
         check(H5Lcreate_external("other.h5", "/", g, "ext", H5P_DEFAULT, H5P_DEFAULT), "link");
       }},
      {"300 soft links", [](hid_t, hid_t g) { make_links(g, H5L_TYPE_SOFT); }},
      {"a cycle",
       [](hid_t f, hid_t g) {
         check(H5Lcreate_hard(f, "/", g, "root", H5P_DEFAULT, H5P_DEFAULT), "link");
       }},
      {"a group in itself",
       [](hid_t, hid_t g) {
         check(H5Lcreate_hard(g, ".", g, "again", H5P_DEFAULT, H5P_DEFAULT), "link");
       }},
      {"a group twice",
       [](hid_t f, hid_t g) {
         check(H5Lcreate_hard(f, "/params", g, "params2", H5P_DEFAULT, H5P_DEFAULT), "link");
       }},
      {"a huge dataset", [](hid_t, hid_t g) { create(g, "huge", H5T_IEEE_F64LE, {kHuge}); }},
      {"a huge product",
       [](hid_t, hid_t g) {
         create(g, "huge", H5T_STD_U8LE, {1 << 20, 1 << 20, 1 << 20});
       }},
      {"a large dataset never written",
       [](hid_t, hid_t g) { create(g, "large", H5T_STD_U8LE, {hsize_t{1} << 28}); }},
      {"no rows but many columns",
       [](hid_t, hid_t g) {
         create(g, "none", H5T_IEEE_F32LE, {0, kHuge, kHuge});
       }},
      {"a huge text",
       [](hid_t, hid_t g) {
         const Handle type(H5Tcopy(H5T_C_S1), "type");
         check(H5Tset_size(type.id(), size_t{1} << 31), "size");
         create(g, "text", type.id(), {1000});
       }},
      {"a compressed chunk of 64 MiB",
       [](hid_t, hid_t g) { make_bomb(g, hsize_t{1} << 26, false); }},
      {"a shuffled chunk of 1 MiB", [](hid_t, hid_t g) { make_bomb(g, hsize_t{1} << 20, true); }},
      {"data in another file",
       [](hid_t, hid_t g) {
         const Handle properties = layout();
         check(H5Pset_external(properties.id(), "/etc/hostname", 0, 3), "external");
         create(g, "elsewhere", H5T_STD_U8LE, {3}, properties.id());
       }},
      {"a view of other data",
       [](hid_t, hid_t g) {
         const Handle properties = layout(), space = space_with({3});
         check(H5Pset_virtual(properties.id(), space.id(), "other.h5", "x", space.id()), "virtual");
         create(g, "view", H5T_STD_U8LE, {3}, properties.id());
       }},
      {"a record",
       [](hid_t, hid_t g) {
         const Handle type(H5Tcreate(H5T_COMPOUND, 16), "type");
         check(H5Tinsert(type.id(), "a", 0, H5T_STD_I64LE), "insert");
         make_dataset(g, type.id());
       }},
      {"opaque bytes",
       [](hid_t, hid_t g) { make_dataset(g, Handle(H5Tcreate(H5T_OPAQUE, 3), "type").id()); }},
      {"lists of numbers",
       [](hid_t, hid_t g) { make_dataset(g, Handle(H5Tvlen_create(H5T_STD_I32LE), "type").id()); }},
      {"bit fields", [](hid_t, hid_t g) { make_dataset(g, H5T_STD_B16LE); }},
      {"references", [](hid_t, hid_t g) { make_dataset(g, H5T_STD_REF_OBJ); }},
      {"wide floats", [](hid_t, hid_t g) { make_dataset(g, H5T_NATIVE_LDOUBLE); }},
      {"big-endian numbers", [](hid_t, hid_t g) { make_dataset(g, H5T_STD_U16BE); }},
      {"a type with a name",
       [](hid_t, hid_t g) {
         const Handle type(H5Tcopy(H5T_STD_I32LE), "type");
         check(H5Tcommit2(g, "type", type.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), "commit");
       }},
      {"nothing at all",
       [](hid_t, hid_t g) {
         const Handle space(H5Screate(H5S_NULL), "space");
         Handle(H5Dcreate2(g, "null", H5T_STD_I32LE, space.id(), H5P_DEFAULT, H5P_DEFAULT,
                           H5P_DEFAULT),
                "create");
       }},
      {"nine dimensions",
       [](hid_t, hid_t g) { create(g, "nine", H5T_STD_U8LE, std::vector<hsize_t>(9, 1)); }},
      {"a large attribute",
       [](hid_t, hid_t g) {
         const Handle space = space_with({60000});
         Handle(H5Acreate2(g, "large", H5T_STD_U8LE, space.id(), H5P_DEFAULT, H5P_DEFAULT),
                "attribute");
       }},
      {"many attributes",
       [](hid_t, hid_t g) {
         for (int i = 0; i < 500; ++i)
           hdf5::write_attribute(g, "a" + std::to_string(i), int64_t{i});
       }},
      {"a name with a control character",
       [](hid_t, hid_t g) { create(g, "\x1b[31mred\x07", H5T_STD_U8LE, {1}); }},
      {"a name that is not UTF-8",
       [](hid_t, hid_t g) { create(g, "\xff\xfe", H5T_STD_U8LE, {1}); }},
      {"two names of one thing",
       [](hid_t, hid_t g) {
         create(g, "a%41", H5T_STD_U8LE, {1}), create(g, "a%42", H5T_STD_U8LE, {1});
       }},
      {"an attribute that is not UTF-8",
       [](hid_t, hid_t g) {
         hdf5::write_attribute(g, "\xffname\x1b", std::string("\xfe\x1b]0;x\x07"));
       }},
  };
  return all;
}

}  // namespace

std::string damage_hdf5(const std::string& path, Dice& dice) {
  const char* const groups[] = {"/",
                                "/params",
                                "/amp",
                                "/steps/000000/micro/000/inputs",
                                "/verify/000001/ref32",
                                "/optimizer/groups"};
  const Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open " + path);
  const char* where = groups[dice.below(std::size(groups))];
  const Handle group = hdf5::open_group(file.id(), where);
  const Damage& damage = damages()[dice.below(damages().size())];
  damage.make(file.id(), group.id());
  return std::string(where) + ": " + damage.what;
}

}  // namespace lockstep::testing
