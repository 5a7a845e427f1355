// Where the parts of an HDF5 file are: superblock, object headers and their messages, B-trees,
// symbol tables, heaps, data. Parsed only as far as to find them, and only valid files. Knows the
// forms that this project's writers choose: superblock 0, object headers of version 1 (HDF5 File
// Format Specification 3.0, sections II.A, III.A, III.B, III.D, IV.A.1); of newer forms the
// superblock, headers and data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::fuzz {

struct FilePart {
  std::string name;  // "/lanes/fp32/loss message 8 0"; see hdf5_edits.h
  std::string kind;  // "message 8", "header", "btree", "symbols", "heap", "data", "superblock"
  uint64_t begin = 0, size = 0;
};
// A text in the file: "/sites/layer#3" (a row of a column), "/sites" "@name" (an attribute).
struct FileText {
  std::string place, text;
};
struct FileParts {
  std::vector<FilePart> parts;
  std::vector<FileText> texts;
  std::vector<std::string> objects, attributes;  // "/lanes/fp32", "/lanes/fp32@engine"
  const FilePart* find(std::string_view name) const;
};

FileParts find_parts(const std::string& path, const std::string& bytes);

}  // namespace lockstep::fuzz
