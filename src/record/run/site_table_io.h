// The site table as columns under /sites, and back.
#pragma once

#include <hdf5.h>

#include "src/graph/site.h"
#include "src/record/hdf5/stored_fields.h"

namespace lockstep {

void write_sites(hid_t root, const SiteTable& table);  // Throws: hdf5::Error
// From the group /sites. Ids, feeds and shapes are within the table and the limits of graphs; what
// is not becomes a problem of `group`.
SiteTable read_sites(const StoredFields& group);

}  // namespace lockstep
